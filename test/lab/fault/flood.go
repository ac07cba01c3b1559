// Package fault holds faults that tests confront programs with: hostile clients of an HTTP server, power
// losses while files are written, and kernels changed one instruction at a time. A sample must detect
// each such change, as it must any fault of a GPU; changes that go unnoticed show gaps in its checks.
package fault

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is the behaviour of a hostile client on a connection.
type Kind string

// The kinds.
const (
	Silent     Kind = "silent"            // sends nothing
	Unfinished Kind = "unfinished header" // sends a header of 1 MB that does not end
	Slow       Kind = "slow header"       // sends a byte of a header now and then
	Lines      Kind = "many lines"        // sends a header of many short lines
	Unread     Kind = "unread answer"     // requests the metrics and does not read them
	Idle       Kind = "kept alive"        // reads the response and keeps the connection
	Body       Kind = "missing body"      // announces a body that it does not send
	Preface    Kind = "HTTP/2 preface"    // begins to speak HTTP/2
	Pipelined  Kind = "pipelined"         // sends many requests at once and reads nothing
	Garbage    Kind = "garbage"           // sends data that is not HTTP
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{Silent, Unfinished, Slow, Lines, Unread, Idle, Body, Preface, Pipelined, Garbage}
}

// pause is the delay before a client connects again.
const pause = time.Second

// Attack is a number of hostile clients.
type Attack struct {
	clients sync.WaitGroup
	made    atomic.Int64
}

// Start keeps n connections to addr until ctx ends, from the local address from; "": any. A connection
// that the server ends is replaced a second later.
func Start(ctx context.Context, from, addr string, kind Kind, n int) *Attack {
	a := &Attack{}
	for range n {
		a.clients.Go(func() {
			for ctx.Err() == nil {
				_ = a.once(ctx, from, addr, kind)
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	return a
}

// Wait waits until all clients have ended.
func (a *Attack) Wait() { a.clients.Wait() }

// Connections returns the number of connections made so far.
func (a *Attack) Connections() int { return int(a.made.Load()) }

// Payloads, built once for all clients.
const begin = "GET /metrics HTTP/1.1\r\nHost: x\r\n"

var (
	unfinished = begin + "X-Filler: " + strings.Repeat("a", 1<<20)
	lines      = begin + strings.Repeat("a:\r\n", 1<<18)
	pipelined  = strings.Repeat(begin+"\r\n", 1000)
	garbage    = strings.Repeat("\x16\x03\x01\xff", 1<<16)
)

// once uses one connection until the server ends it or ctx ends.
func (a *Attack) once(ctx context.Context, from, addr string, k Kind) error {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	if k == Unread || k == Pipelined {
		dialer.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
		}
	}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	a.made.Add(1)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	send := func(text string) error {
		_, err := io.WriteString(conn, text)
		return err
	}
	switch k {
	case Unfinished:
		err = send(unfinished)
	case Slow:
		for err = send(begin); err == nil; err = send("a") {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(pause):
			}
		}
	case Lines:
		err = send(lines)
	case Body:
		err = send("GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
	case Preface:
		err = send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	case Pipelined:
		err = send(pipelined)
	case Garbage:
		err = send(garbage)
	case Unread, Idle:
		err = send(begin + "\r\n")
	}
	if err != nil {
		return err
	}
	if k == Unread || k == Pipelined {
		return holdOpen(ctx, conn)
	}
	_, err = io.Copy(io.Discard, conn)
	return err
}

// holdOpen waits until the server resets a connection from which nothing is read.
func holdOpen(ctx context.Context, conn net.Conn) error {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		var state byte
		if err := raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				state = info.State
			}
		}); err != nil {
			return err
		}
		const closed = 7 // TCP_CLOSE of tcp_states.h
		if state == closed {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// Probe requests a path as the kubelet does, on a new connection, and returns the response time. A
// response other than 200 is an error.
func Probe(ctx context.Context, addr, path string) (time.Duration, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", path, response.Status)
	}
	return time.Since(start), nil
}
