package metricsserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Anybody in the cluster may reach the port, so nothing that a client does may cost
// much or keep another client out (docs/decisions/0037-the-metrics-port-has-its-own-server.md).
const (
	// maxConns bounds the connections that are served at once; each takes about 5 kB. A
	// newer one takes the place of an older one; see evict.
	maxConns = 512
	// maxHeader bounds a request in bytes. A scraper's bearer token may take 4 kB.
	maxHeader = 8 << 10
	maxLine   = 1 << 10 // the first line of a request
	// receiveBuffer bounds a client's data in the kernel, which counts as memory of the
	// container. A connection needs no more than one request.
	receiveBuffer = 4 << 10
	// sendBuffer bounds the part of a response in the kernel that the client does not read.
	sendBuffer = 8 << 10

	headerTimeout   = 5 * time.Second        // for the request
	responseTimeout = 15 * time.Second       // for all of it, until the client has read the response
	endTimeout      = 100 * time.Millisecond // for answers under way when the server ends
	acceptPause     = 100 * time.Millisecond // after the kernel refused a connection
)

// server answers one request on each connection. It does not use net/http's server,
// which sleeps for 500 ms after some refused requests. After closing a connection, that
// one also leaves unread responses to the kernel to deliver.
type server struct {
	listener net.Listener
	respond  func(path string, gone <-chan struct{}) response
	slots    chan struct{} // holds one value for each connection
	serving  sync.WaitGroup

	mu    sync.Mutex
	conns []*conn            // the oldest first
	count map[netip.Addr]int // of conns, by client address
}

// response is an HTTP response. Several connections may share its body.
type response struct {
	code int
	kind string // Content-Type
	body []byte
}

// conn is a connection in use.
type conn struct {
	*net.TCPConn
	from  netip.Addr
	until time.Time     // the deadline of the connection
	gone  chan struct{} // closed when it was evicted
}

// listen listens on addr. It retries while the process or the machine is short of file
// descriptors, because a daemon must not end for lack of metrics.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer))
		})
		return errors.Join(err, failed)
	}}
	for {
		ln, err := config.Listen(ctx, "tcp", addr)
		if !exhausted(err) {
			return ln, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Second):
		}
	}
}

// exhausted reports whether the kernel refused a file descriptor or memory.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}

// run serves until ctx ends, and then returns nil, or until the listener fails.
func (s *server) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.listener.Close() })
	defer stop()
	defer s.end()
	for {
		c, err := s.listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case exhausted(err):
			s.evict() // which frees a descriptor
			pause(ctx, acceptPause)
		case errors.Is(err, unix.ECONNABORTED):
		case err != nil:
			return err
		default:
			s.admit(c)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// admit serves a connection. It evicts another one if there are too many.
func (s *server) admit(nc net.Conn) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		_ = nc.Close()
		return
	}
	select {
	case s.slots <- struct{}{}:
	default:
		s.evict()
		s.slots <- struct{}{} // the evicted connection's goroutine only has to notice
	}
	now := time.Now()
	c := &conn{TCPConn: tcp, until: now.Add(responseTimeout), gone: make(chan struct{})}
	if from, ok := tcp.RemoteAddr().(*net.TCPAddr); ok {
		c.from = from.AddrPort().Addr()
	}
	_ = c.SetReadDeadline(now.Add(headerTimeout))
	_ = c.SetWriteDeadline(c.until)
	s.mu.Lock()
	s.conns = append(s.conns, c)
	s.count[c.from]++
	s.mu.Unlock()
	s.serving.Go(func() {
		defer func() { <-s.slots }()
		defer s.release(c)
		s.serve(c)
	})
}

// evict ends the oldest connection of the client address that has the most of them, and
// reports whether there was one. So an attacker ends its own connections, and a probe
// from the same address is served unless maxConns others come while it sends a request.
func (s *server) evict() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) == 0 {
		return false
	}
	most := 0
	for _, n := range s.count {
		most = max(most, n)
	}
	at := slices.IndexFunc(s.conns, func(c *conn) bool { return s.count[c.from] == most })
	victim := s.conns[at]
	s.remove(at)
	close(victim.gone)
	victim.reset()
	return true
}

// remove forgets a connection. s.mu is held.
func (s *server) remove(at int) {
	from := s.conns[at].from
	s.conns = slices.Delete(s.conns, at, at+1)
	if s.count[from]--; s.count[from] == 0 {
		delete(s.count, from)
	}
}

// release ends a connection that was served.
func (s *server) release(c *conn) {
	s.mu.Lock()
	if at := slices.Index(s.conns, c); at >= 0 { // else it was evicted
		s.remove(at)
	}
	s.mu.Unlock()
	c.reset()
}

// reset closes the connection and makes the kernel drop it at once, with the data that
// the client has not read.
func (c *conn) reset() {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// serve answers one request, and waits until the client has read the response: nothing
// bounds the memory of data that the kernel delivers after a close.
func (s *server) serve(c *conn) {
	method, path, err := readRequest(c)
	switch {
	case errors.Is(err, errMalformed):
		write(c, response{http.StatusBadRequest, textPlain, []byte("bad request\n")}, true)
	case err != nil:
		return // it was too slow, or is gone
	case method != http.MethodGet && method != http.MethodHead:
		write(c, response{http.StatusMethodNotAllowed, textPlain, []byte("use GET\n")}, true)
	default:
		write(c, s.respond(path, c.gone), method == http.MethodGet)
	}
	_ = c.CloseWrite()
	_ = c.SetReadDeadline(c.until)
	var rest [512]byte // not io.Discard, which takes 8 kB
	for n := 0; n < maxHeader; {
		more, err := c.Read(rest[:])
		if err != nil {
			return
		}
		n += more
	}
}

// errMalformed means that a client sent something other than an HTTP/1 request.
var errMalformed = errors.New("malformed request")

// readRequest reads a request up to the end of its header. No response depends on a
// header field, so none is kept.
func readRequest(r io.Reader) (method, path string, err error) {
	limited := &io.LimitedReader{R: r, N: maxHeader}
	lines := bufio.NewReaderSize(limited, maxLine)
	first, err := lines.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", "", errMalformed
	case err != nil:
		return "", "", err
	}
	fields := strings.Fields(string(first))
	if len(fields) != 3 || !strings.HasPrefix(fields[2], "HTTP/1.") {
		return "", "", errMalformed
	}
	target, err := url.ParseRequestURI(fields[1])
	if err != nil {
		return "", "", errMalformed
	}
	for begins := true; ; {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			begins = false // the rest of this line comes next
		case err != nil && limited.N <= 0:
			return "", "", errMalformed
		case err != nil:
			return "", "", err
		case begins && len(bytes.TrimRight(line, "\r\n")) == 0:
			return fields[0], target.Path, nil
		default:
			begins = true
		}
	}
}

func write(w io.Writer, a response, whole bool) {
	var head strings.Builder
	head.WriteString("HTTP/1.1 " + strconv.Itoa(a.code) + " " + http.StatusText(a.code) + "\r\n")
	header := http.Header{
		"Content-Type": {a.kind}, "Content-Length": {strconv.Itoa(len(a.body))}, "Connection": {"close"},
		"Date": {time.Now().UTC().Format(http.TimeFormat)}, "X-Content-Type-Options": {"nosniff"},
	}
	if a.code == http.StatusMethodNotAllowed {
		header.Set("Allow", "GET, HEAD")
	}
	_ = header.Write(&head)
	head.WriteString("\r\n")
	parts := net.Buffers{[]byte(head.String())}
	if whole {
		parts = append(parts, a.body)
	}
	_, _ = parts.WriteTo(w)
}

// end gives unfinished responses a moment, and waits for all goroutines.
func (s *server) end() {
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // who has not sent a request is not waited for
	}
	s.mu.Unlock()
	late := time.AfterFunc(endTimeout, func() {
		for s.evict() {
		}
	})
	defer late.Stop()
	s.serving.Wait()
}
