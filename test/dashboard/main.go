// Command dashboard draws deployments/monitoring/dashboard.json with what a Prometheus recorded. Its
// test records a cluster with simulated GPUs on which something happens; `make dashboard-picture` runs
// both and takes the picture.
//
//	go run ./test/dashboard --dir bin/dashboard    # draws what the test recorded there
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/pflag"
)

func main() {
	dir := pflag.String("dir", "bin/dashboard", "the folder of the recording; the page is written there")
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	empty, err := drawRecording(ctx, *dir)
	stop()
	for _, title := range empty {
		fmt.Fprintf(os.Stderr, "dashboard: no data and no reason for that: %s\n", title)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "dashboard: %v\n", err)
		os.Exit(1)
	}
}
