package billing

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func appendAll(t *testing.T, s *Spool, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := s.Append([]Receipt{testReceipt(id)}); err != nil {
			t.Fatal(err)
		}
	}
}

// replayed empties the spool and lists the request ids, in order.
func replayed(t *testing.T, s *Spool) (ids []string, lost int) {
	t.Helper()
	lost, err := s.Replay(t.Context(), 3, func(_ context.Context, receipts []Receipt) error {
		for _, r := range receipts {
			ids = append(ids, r.RequestID)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids, lost
}

func onlySegment(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	if err != nil || len(found) != 1 {
		t.Fatalf("segments: %v, %v", found, err)
	}
	return found[0]
}

func TestASpoolGivesBackWhatWasPutInto(t *testing.T) {
	t.Parallel()
	s := testSpool(t, t.TempDir(), 0)
	want := testReceipt("req_1")
	want.ClientRequestID = "<\"é\n>"
	want.CachedTiers = &CacheTiers{Host: 3, Storage: 4}
	if err := s.Append([]Receipt{want}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Replay(t.Context(), 10, func(_ context.Context, got []Receipt) error {
		if diff := cmp.Diff([]Receipt{want}, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := s.Bytes(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

func TestASpoolIsReplayedInOrderAfterARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var want []string
	for p := range 3 { // processes
		s, err := OpenSpool(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			id := fmt.Sprintf("req_%d_%d", p, i)
			appendAll(t, s, id)
			want = append(want, id)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := replayed(t, testSpool(t, dir, 0))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestATornTailIsForgottenAndNothingElse(t *testing.T) {
	t.Parallel()
	whole := appendFrame(nil, []byte(`{"request_id":"req_torn"}`))
	tails := map[string][]byte{
		"half a head":           whole[:5],
		"a head alone":          whole[:frameHead],
		"half a payload":        whole[:len(whole)-1],
		"zeros":                 make([]byte, 4096),
		"an impossible length":  append(binary.LittleEndian.AppendUint32(nil, 1<<31), 1, 2, 3, 4, 5),
		"a length past the end": binary.LittleEndian.AppendUint64(nil, 500),
	}
	for name, tail := range tails {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := testSpool(t, dir, 0)
			appendAll(t, s, "req_1", "req_2")
			file, err := os.OpenFile(onlySegment(t, dir), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := file.Write(tail); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(file.Close(), s.Close()); err != nil {
				t.Fatal(err)
			}

			again := testSpool(t, dir, 0)
			appendAll(t, again, "req_3")
			got, lost := replayed(t, again)
			if diff := cmp.Diff([]string{"req_1", "req_2", "req_3"}, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if lost != 0 || again.Bytes() != 0 {
				t.Errorf("%d lost, %d bytes left", lost, again.Bytes())
			}
		})
	}
}

func TestADamagedReceiptIsCountedAndItsFileKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := testSpool(t, dir, 0)
	appendAll(t, s, "req_1")
	at := s.Bytes() + frameHead + 20 // inside the second payload
	appendAll(t, s, "req_2", "req_3")
	path := onlySegment(t, dir)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[at] ^= 0x40
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	got, lost := replayed(t, s)
	if diff := cmp.Diff([]string{"req_1", "req_3"}, got); diff != "" || lost != 1 {
		t.Errorf("%d lost (-want +got):\n%s", lost, diff)
	}
	if _, err := os.Stat(path + damagedSuffix); err != nil {
		t.Error(err)
	}
	if n := s.Bytes(); n != 0 {
		t.Errorf("%d bytes are still to be replayed", n)
	}
}

func TestAFailedReplayForgetsNothing(t *testing.T) {
	t.Parallel()
	s := testSpool(t, t.TempDir(), 0)
	appendAll(t, s, "req_1", "req_2", "req_3", "req_4", "req_5")
	before := s.Bytes()
	errAway := errors.New("away")
	calls := 0
	_, err := s.Replay(t.Context(), 2, func(context.Context, []Receipt) error {
		if calls++; calls == 2 {
			return errAway
		}
		return nil
	})
	if !errors.Is(err, errAway) || s.Bytes() != before {
		t.Errorf("%v; %d bytes of %d are left", err, s.Bytes(), before)
	}
	appendAll(t, s, "req_6")
	got, _ := replayed(t, s)
	if diff := cmp.Diff([]string{"req_1", "req_2", "req_3", "req_4", "req_5", "req_6"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestASpoolNeverOutgrowsItsBound(t *testing.T) {
	t.Parallel()
	s := testSpool(t, t.TempDir(), 5000)
	var err error
	for i := 0; err == nil && i < 100; i++ {
		err = s.Append([]Receipt{testReceipt(fmt.Sprintf("req_%d", i))})
	}
	if !errors.Is(err, ErrSpoolFull) || s.Bytes() > 5000 {
		t.Errorf("%v at %d bytes", err, s.Bytes())
	}
	replayed(t, s)
	appendAll(t, s, "req_after")
}

func TestOneProcessOwnsASpool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testSpool(t, dir, 0)
	if s, err := OpenSpool(dir, 0); err == nil {
		t.Error("a second one was opened", s.Close())
	}
}

func TestAClosedSpoolRefuses(t *testing.T) {
	t.Parallel()
	s := testSpool(t, t.TempDir(), 0)
	appendAll(t, s, "req_1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Append([]Receipt{testReceipt("req_2")}); err == nil {
		t.Error("appended after Close")
	}
	if _, err := s.Replay(t.Context(), 1, nil); err == nil {
		t.Error("replayed after Close")
	}
}

func TestAppendsAndAReplayMayOverlap(t *testing.T) {
	t.Parallel()
	s := testSpool(t, t.TempDir(), 0)
	const writers, each = 8, 25
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := s.Append([]Receipt{testReceipt(fmt.Sprintf("req_%d_%d", w, i))}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	written := make(chan struct{})
	go func() { wg.Wait(); close(written) }()
	seen := make(map[string]int)
	for done := false; !done; {
		select {
		case <-written:
			done = true // and once more, for the last ones
		default:
		}
		ids, _ := replayed(t, s)
		for _, id := range ids {
			seen[id]++
		}
	}
	if len(seen) != writers*each {
		t.Errorf("%d receipts, want %d", len(seen), writers*each)
	}
}

func TestSegmentsAreCutToSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := testSpool(t, dir, 0)
	batch := make([]Receipt, 2000)
	for i := range batch {
		batch[i] = testReceipt(fmt.Sprintf("req_%d", i))
	}
	for s.Bytes() < 3*segmentBytes {
		if err := s.Append(batch); err != nil {
			t.Fatal(err)
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	if err != nil || len(found) < 3 {
		t.Errorf("%d segments, %v", len(found), err)
	}
	want := s.Bytes() / int64(len(appendFrame(nil, nil))+1) // an upper bound only
	ids, _ := replayed(t, s)
	if len(ids)%len(batch) != 0 || int64(len(ids)) > want || s.Bytes() != 0 {
		t.Errorf("%d receipts came back, %d bytes left", len(ids), s.Bytes())
	}
}

// Whatever is cut off or flipped in a segment, reading it neither fails nor
// invents a receipt.
func TestAnyDamageToASegmentOnlyLosesReceipts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "receipts")
		var data []byte
		for i := range n {
			data = appendFrame(data, fmt.Appendf(nil, `{"request_id":"req_%d"}`, i))
		}
		data = data[:rapid.IntRange(0, len(data)).Draw(t, "cut")]
		for range rapid.IntRange(0, 3).Draw(t, "flips") {
			if len(data) > 0 {
				data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
			}
		}
		path := filepath.Join(dir, "segment")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		receipts, lost, err := readSegment(path)
		if err != nil || len(receipts)+lost > n {
			t.Fatalf("%d read, %d lost of %d: %v", len(receipts), lost, n, err)
		}
		last := -1
		for _, r := range receipts {
			var i int
			if _, err := fmt.Sscanf(r.RequestID, "req_%d", &i); err != nil || i <= last || i >= n {
				t.Fatalf("read %q after %d", r.RequestID, last)
			}
			last = i
		}
	})
}

func TestARecordFromBeforeTiersIsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := testSpool(t, dir, 0)
	appendAll(t, s, "req_old")
	path := onlySegment(t, dir)
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const old = `"usage":{"input_uncached":10,"input_cached":20,"output":30,"reasoning":40}`
	if !bytes.Contains(written, []byte(old)) {
		t.Fatalf("a receipt without tiers is no longer written as before: %s", written)
	}
	_, err = s.Replay(t.Context(), 1, func(_ context.Context, got []Receipt) error {
		if len(got) != 1 || got[0].CachedTiers != nil {
			t.Errorf("got %+v", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
