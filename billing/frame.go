package billing

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"os"
)

// A frame is the payload's length and its CRC-32C, both little-endian 32-bit,
// then the payload: one receipt as JSON.
const (
	frameHead  = 8
	maxPayload = 1 << 20 // a longer length is garbage; a receipt has at most some KB
)

func frameSum(payload []byte) uint32 {
	return crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli))
}

func appendFrame(buf, payload []byte) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(payload))) //nolint:gosec // bounded by a receipt's texts
	buf = binary.LittleEndian.AppendUint32(buf, frameSum(payload))
	return append(buf, payload...)
}

// readSegment reads the receipts of a segment. lost counts whole frames that
// don't hold what was written. A torn tail isn't lost: its write was never
// confirmed to anybody.
func readSegment(path string) (receipts []Receipt, lost int, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, err
	}
	for len(data) >= frameHead {
		size := int(binary.LittleEndian.Uint32(data))
		if size == 0 || size > maxPayload || size > len(data)-frameHead {
			break
		}
		payload := data[frameHead : frameHead+size]
		sum := binary.LittleEndian.Uint32(data[4:])
		data = data[frameHead+size:]
		var r Receipt
		if frameSum(payload) != sum || json.Unmarshal(payload, &r) != nil {
			lost++
			continue
		}
		receipts = append(receipts, r)
	}
	return receipts, lost, nil
}
