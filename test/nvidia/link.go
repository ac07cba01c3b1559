package nvidia

import (
	"net"
	"sync"
	"time"
)

// Link is the way from nodes to a registry. The zero value is as quick as this machine.
//
// The delay is made in this process, on the registry's side of each connection, since many
// kernels have no netem: a new connection costs two round trips (TCP and TLS 1.3), each
// request one more, and all connections share the rate. TCP's slow start is not modelled,
// so a real link of that kind is slower.
type Link struct {
	RoundTrip time.Duration
	Rate      int64 // bits a second; 0: as quick as can be
}

// Public returns what a registry on the internet is like.
func Public() Link { return Link{RoundTrip: 80 * time.Millisecond, Rate: 200e6} }

// line is a link that is in use.
type line struct {
	Link
	mu   sync.Mutex
	free time.Time // when all that was written has gone through
}

// send waits until n bytes have gone through.
func (l *line) send(n int) {
	if l.Rate == 0 {
		return
	}
	l.mu.Lock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(int64(n) * 8 * int64(time.Second) / l.Rate))
	until := l.free
	l.mu.Unlock()
	time.Sleep(time.Until(until))
}

// listener accepts connections over a line.
type listener struct {
	net.Listener
	line *line
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, line: l.line, trips: 2, asked: true}, nil
}

// conn is a connection over a line. One goroutine of the HTTP server reads and another
// writes, at times side by side.
type conn struct {
	net.Conn
	line *line

	mu    sync.Mutex
	trips int  // round trips to wait for before the next answer
	asked bool // something was read since the last answer began
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.mu.Lock()
		c.asked = true
		c.mu.Unlock()
	}
	return n, err
}

// piece is the number of bytes of one write: small beside a second's.
const piece = 256 << 10

func (c *conn) Write(p []byte) (written int, err error) {
	c.mu.Lock()
	trips := c.trips
	if c.asked {
		trips++
	}
	c.trips, c.asked = 0, false
	c.mu.Unlock()
	time.Sleep(time.Duration(trips) * c.line.RoundTrip)
	for len(p) > 0 {
		part := p[:min(len(p), piece)]
		c.line.send(len(part))
		n, err := c.Conn.Write(part)
		written += n
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}
