// Package leak fails a program of tests that leave goroutines behind.
package leak

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end: on a busy machine the kernel takes longer to close an inotify
// instance than the half second of goleak.VerifyTestMain.
const patience = 10 * time.Second

// Main runs a program's tests and exits. It fails if goroutines are left that the options do not ignore.
func Main(m goleak.TestingM, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := find(options); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines are left after all tests passed: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

func find(options []goleak.Option) error {
	for began := time.Now(); ; {
		err := goleak.Find(options...) // it waits for a while, too
		if err == nil || time.Since(began) > patience {
			return err
		}
	}
}
