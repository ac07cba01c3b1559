package cluster

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if exit, ran := Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	goleak.VerifyTestMain(m)
}
