package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// agentStandIn answers a client's requests out of their order.
func agentStandIn(t *testing.T) (c *client, hangUp func()) {
	t.Helper()
	fromAgent, toTest := io.Pipe()
	fromTest, toAgent := io.Pipe()
	t.Cleanup(func() { _ = fromTest.Close() })
	go func() {
		fmt.Fprint(toTest, "BdsDxe: starting\n\x1b[2J{}\n\n")
		fmt.Fprintln(toTest, `{"ID":0}`)
		in := bufio.NewScanner(fromTest)
		var held *Request
		for in.Scan() {
			var r Request
			if json.Unmarshal(in.Bytes(), &r) != nil {
				return
			}
			switch r.Op {
			case OpWait: // until the next request has been answered
				held = &r
				continue
			case OpLoadModule:
				fmt.Fprintf(toTest, `{"ID":%d,"Error":"load %s","Errno":%d}`+"\n", r.ID, r.Path, syscall.ENOEXEC)
			case OpReadFile:
				fmt.Fprintf(toTest, `{"ID":%d,"Data":"aGVsbG8="}`+"\n", r.ID)
			}
			if held != nil {
				fmt.Fprintf(toTest, `{"ID":%d,"Exited":true,"Code":3}`+"\n", held.ID)
				held = nil
			}
		}
	}()
	return newClient(fromAgent, toAgent), func() { _ = toTest.Close() }
}

func TestClientMatchesResponsesToRequests(t *testing.T) {
	c, hangUp := agentStandIn(t)
	<-c.serving
	waited := make(chan Response, 1)
	go func() {
		r, _ := c.call(t.Context(), Request{Op: OpWait})
		waited <- r
	}()
	require.Eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.waiting) == 1 }, time.Minute, time.Millisecond)
	_, err := c.call(t.Context(), Request{Op: OpLoadModule, Path: "a.ko"})
	require.ErrorIs(t, err, syscall.ENOEXEC)
	require.EqualError(t, err, "load a.ko: exec format error")
	require.Equal(t, 3, (<-waited).Code)
	r, err := c.call(t.Context(), Request{Op: OpReadFile})
	require.NoError(t, err)
	require.Equal(t, "hello", string(r.Data))

	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = c.call(ctx, Request{Op: OpWait})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	go hangUp()
	_, err = c.call(t.Context(), Request{Op: OpWait})
	require.ErrorIs(t, err, errEnded)
}
