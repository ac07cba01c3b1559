package node

import (
	"errors"

	"regexp"
	"strings"
	"testing"
	"time"
)

// Enter runs the rest of a top-level test inside a node, where it returns true. In the outer
// process it runs the test in a new node, reports its result and returns false. Without root it
// skips the test.
//
//	func TestX(t *testing.T) {
//		if !node.Enter(t) {
//			return
//		}
//		…
func Enter(t *testing.T) bool {
	t.Helper()
	if Inside() {
		if err := Setup(); err != nil {
			t.Fatal(err)
		}
		return true
	}
	args := []string{"-test.run", "^" + regexp.QuoteMeta(t.Name()) + "$", "-test.v"}
	if deadline, ok := t.Deadline(); ok {
		// The inner test ends first, so that it can report where it hung.
		args = append(args, "-test.timeout", (time.Until(deadline) * 9 / 10).String())
	}
	cmd, name, err := Command(t.Context(), args...)
	if errors.Is(err, ErrNotRoot) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer Cleanup(name)
	out, err := cmd.CombinedOutput()
	switch text := string(out); {
	case err != nil:
		t.Fatalf("inside its node: %v\n%s", err, text)
	case strings.Contains(text, "--- SKIP: "+t.Name()+" "):
		t.Skipf("inside its node:\n%s", text)
	case !strings.Contains(text, "--- PASS: "+t.Name()+" "):
		t.Fatalf("the test did not run inside its node:\n%s", text)
	case testing.Verbose():
		t.Log(text)
	}
	return false
}
