package gate

import (
	"regexp"
	"strings"
	"testing"
)

// TestReasons: codes are fit for metrics and differ; of two sentences in a pod's condition none is in the other, so that they can be told apart; and
// there is a hint if, and only if, the gate does not open by itself.
func TestReasons(t *testing.T) {
	code := regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`)
	for i, a := range table {
		if !code.MatchString(a.Code) || a.Detail != "" || a.Sentence == "" || strings.HasPrefix(a.Sentence, "node(s) ") != a.Kind.InCondition() {
			t.Errorf("%+v", a)
		}
		if (a.Hint != "") != (a.Kind == Lasting) {
			t.Errorf("%s has the hint %q", a.Code, a.Hint)
		}
		if got := Lookup(a.Code); got != a {
			t.Errorf("Lookup(%q) = %+v, want %+v", a.Code, got, a)
		}
		for k, b := range table {
			if i != k && (a.Code == b.Code || a.Kind.InCondition() && b.Kind.InCondition() && strings.Contains(a.Sentence, b.Sentence)) {
				t.Errorf("%+v and %+v cannot be told apart", a, b)
			}
		}
	}
	if got := Lookup("Unheard"); got != (Entry{}) {
		t.Errorf("of what is not known: %+v", got)
	}
}
