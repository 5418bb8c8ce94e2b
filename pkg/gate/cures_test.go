package gate

import "testing"

// TestCures: of each reason for which a gate is closed it is known what helps, or that time does.
func TestCures(t *testing.T) {
	for _, r := range ClosedReasons() {
		if cure := Cure(r.Code); (cure == "") != Waits(r.Code) {
			t.Errorf("%s: %q, and it waits: %v", r.Code, cure, Waits(r.Code))
		}
	}
	for code := range cures {
		if Waits(code) {
			t.Errorf("%s is over by itself", code)
		}
	}
	if cure := Cure("Unheard"); cure != "" {
		t.Errorf("of what is not known: %q", cure)
	}
}
