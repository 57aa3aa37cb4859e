package catalogue_test

import (
	"strings"
	"testing"

	"weir/gateway/catalogue"
)

func TestAnEffortIsTheNextThatTheModelHas(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		own         []string
		asked, want string
	}{
		{nil, "none", "none"},
		{nil, "minimal", "low"},
		{nil, "max", "high"},
		{[]string{"low", "high"}, "none", "low"},
		{[]string{"low", "high"}, "medium", "high"},
		{[]string{"high", "max"}, "xhigh", "max"},
		{[]string{"minimal", "low"}, "max", "low"},
	} {
		m := catalogue.Model{Efforts: tt.own}
		if got := m.Effort(tt.asked); got != tt.want {
			t.Errorf("of %v, %s is asked for: got %s, want %s", tt.own, tt.asked, got, tt.want)
		}
	}
}

func TestATemplateHasKnownWords(t *testing.T) {
	t.Parallel()
	doc := parse(t, `apiVersion: weir/v1
pools: [{name: gpu}]
models: [{name: m, operations: [chat], routes: [{pool: gpu}], template: {system_messages: middle}, reasoning_efforts: [some]}]
`)
	err := doc.Validate()
	for _, want := range []string{"system_messages", "reasoning_efforts"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v says nothing of %s", err, want)
		}
	}
}
