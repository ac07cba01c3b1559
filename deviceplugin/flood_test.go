package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/fault"
)

// freeAddress returns an unused address of this machine.
func freeAddress(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	return ln.Addr().String()
}

// resident returns a process's private memory in bytes.
func resident(t testing.TB, p *built.Process) int {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", p.PID()))
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if value, is := strings.CutPrefix(lines.Text(), "RssAnon:"); is {
			var kib int
			_, err := fmt.Sscanf(value, "%d kB", &kib)
			require.NoError(t, err)
			return kib << 10
		}
	}
	t.Fatal("no RssAnon")
	return 0
}

// TestHostileClientsCostLittleMemory bounds the cost of thousands of connections. The bound is
// generous, since programs with the race detector use several times as much; `make
// bench` has the figure.
func TestHostileClientsCostLittleMemory(t *testing.T) {
	connections := 4000
	if testing.Short() {
		connections = 1000
	}
	bound := connections * 50 << 10
	addr := freeAddress(t)
	m := newMachine(t).up().withKubelet().start("--listen", addr)
	m.wait(8)
	before := resident(t, m.process)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	attack := fault.Start(ctx, "127.0.0.3", addr, fault.Unfinished, connections)
	var waiting sync.WaitGroup
	defer attack.Wait()
	defer waiting.Wait()
	defer cancel()
	// Several probes at a time: one after the other may take minutes on a busy machine.
	const probes = 10
	answers := make(chan struct{}, probes)
	for range probes {
		waiting.Go(func() {
			for ctx.Err() == nil {
				if _, err := fault.Probe(ctx, addr, "/readyz"); err == nil { // the kubelet, too, probes again
					answers <- struct{}{}
					return
				}
			}
		})
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for answered := 0; answered < probes || attack.Connections() < connections; {
		require.Less(t, resident(t, m.process)-before, bound, "bytes, for %d connections", attack.Connections())
		select {
		case <-answers:
			answered++
		case <-tick.C:
		case <-ctx.Done():
			require.NoError(t, ctx.Err(), "%d of %d probes were answered, under %d connections", answered, probes, attack.Connections())
		}
	}
	m.sim("xid", "--gpu", "0", "--xid", "79")
	m.wait(7)
}
