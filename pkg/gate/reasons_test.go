package gate

import (
	"regexp"
	"strings"
	"testing"
)

// TestReasons: codes are unique and valid as values in metrics. No sentence of a pod's condition contains another one,
// so that tools can tell them apart. A reason has a hint if and only if its kind is Lasting.
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
	for kind, want := range map[Kind]string{
		Earlier:   "PoolCanGrow PoolGrowing PoolUnknown ProvisioningRequest",
		Momentary: "SnapshotStale RolloutTerminating ReplicaSetUnknown VictimsTerminating RateLimited OverrideUnread",
	} {
		var codes []string
		for _, e := range Reasons(func(k Kind) bool { return k == kind }) {
			codes = append(codes, e.Code)
		}
		if got := strings.Join(codes, " "); got != want {
			t.Errorf("of kind %d are %s, want %s", kind, got, want)
		}
	}
	if got := Lookup("Unheard"); got != (Entry{}) {
		t.Errorf("of what is not known: %+v", got)
	}
}
