package gate

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"poolpriority.dev/scheduler/pkg/aci"
)

// ofRegular are the codes of the reasons for which a regular pool does not hold the gate.
var ofRegular = []string{reasonNotApplicable.Code, reasonDeclined.Code, reasonBeyondLimits.Code, reasonUnknownLong.Code, reasonNoGroups.Code}

// TestReasonsAreListed: every reason in this package's code is in one of the lists, once.
func TestReasonsAreListed(t *testing.T) {
	listed := map[string]int{}
	for _, code := range ofRegular {
		listed[code]++
	}
	for _, r := range append(Reasons(), OpenReasons()...) {
		listed[r.Code]++
		if r.Sentence == "" || r.Detail != "" {
			t.Errorf("%s has the sentence %q and the detail %q", r.Code, r.Sentence, r.Detail)
		}
	}
	for code, n := range listed {
		if n != 1 || code == "" {
			t.Errorf("%q is listed %d times", code, n)
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`(?i)code: +"([a-z]+)"`).FindAllStringSubmatch(string(source), -1) {
			found++
			if listed[match[1]] != 1 {
				t.Errorf("%s: reason %s is listed nowhere", file, match[1])
			}
		}
	}
	if !Waits(ReasonBudget.Code) || Waits(ReasonOptOut.Code) || Waits(aci.Features()[0].Code) {
		t.Error("which reasons can be waited for is wrong")
	}
	if found < len(listed)-len(aci.Features()) {
		t.Errorf("%d of %d reasons were found in the code", found, len(listed))
	}
}
