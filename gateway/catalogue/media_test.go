package catalogue_test

import (
	"strings"
	"testing"

	"weir/gateway/catalogue"
)

func TestAModelTakesWhatItLists(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		modalities []string
		image      bool
		audio      bool
	}{
		{"one that lists nothing may take anything", nil, true, true},
		{"one of text", []string{"text"}, false, false},
		{"one that sees", []string{"text", "image"}, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := &catalogue.Model{Modalities: tt.modalities}
			if m.Takes(catalogue.Images) != tt.image || m.Takes(catalogue.Audio) != tt.audio {
				t.Errorf("images %t, audio %t", m.Takes(catalogue.Images), m.Takes(catalogue.Audio))
			}
		})
	}
	doc, _, err := catalogue.Parse([]byte("apiVersion: weir/v1\nmodels:\n  - {name: m, operations: [chat], routes: [{pool: p}], modalities: [smell], files: folders}\n"))
	if err != nil {
		t.Fatal(err)
	}
	err = doc.Validate()
	for _, want := range []string{`modality "smell"`, "text is missing", `files: "folders"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no complaint with %q in %v", want, err)
		}
	}
}
