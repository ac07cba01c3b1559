package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxMessage = 8 << 10         // bytes of a message; the rest is dropped
	flushTime  = 1 * time.Second // limit for waitHandled
)

// mark is a message that waitHandled sends to the socket, followed by a number.
const mark = "\x00flushed "

// syslog receives the messages of daemons by syslog(3): nvidia-persistenced logs nowhere else,
// and a driver container runs no syslog daemon. A nil syslog receives nothing.
type syslog struct {
	path string
	conn *net.UnixConn
	done chan struct{} // closed when nothing is received any more

	mu    sync.Mutex
	sent  int                   // marks
	marks map[int]chan struct{} // by number, closed when they arrive
}

// listenSyslog listens on a socket and calls handle with each message. It returns nil if
// another process listens there already.
func listenSyslog(path string, handle func(ident, text string)) (*syslog, error) {
	if c, err := dialDatagram(path); err == nil {
		return nil, c.Close()
	} else if errors.Is(err, unix.ECONNREFUSED) { // left by a killed process
		if err := unix.Unlink(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, &fs.PathError{Op: "unlink", Path: path, Err: err}
		}
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listen for the logs of the driver's daemons: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // daemons may run as another user
		return nil, errors.Join(err, conn.Close())
	}
	s := &syslog{path: path, conn: conn, done: make(chan struct{}), marks: map[int]chan struct{}{}}
	go s.receiveMessages(handle)
	return s, nil
}

// dialDatagram connects to a datagram socket, which does not block.
func dialDatagram(path string) (*net.UnixConn, error) {
	return net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
}

func (s *syslog) receiveMessages(handle func(ident, text string)) {
	defer close(s.done)
	for buffer := make([]byte, maxMessage); ; {
		n, err := s.conn.Read(buffer)
		if err != nil {
			return
		}
		if rest, isMark := bytes.CutPrefix(buffer[:n], []byte(mark)); isMark {
			s.closeMark(string(rest))
			continue
		}
		ident, text := parseSyslog(string(buffer[:n]))
		for line := range strings.Lines(text) {
			handle(ident, line)
		}
	}
}

// closeMark closes the mark with a number.
func (s *syslog) closeMark(number string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, c := range s.marks {
		if fmt.Sprint(n) == number {
			close(c)
			delete(s.marks, n)
		}
	}
}

// waitHandled waits until all messages that were sent before have been handled.
func (s *syslog) waitHandled() {
	if s == nil {
		return
	}
	c, err := dialDatagram(s.path)
	if err != nil {
		return
	}
	defer c.Close() //nolint:errcheck // it is only written
	s.mu.Lock()
	s.sent++
	number, arrived := s.sent, make(chan struct{})
	s.marks[number] = arrived
	s.mu.Unlock()
	late := time.Now().Add(flushTime)
	if err := c.SetWriteDeadline(late); err != nil {
		return
	}
	if _, err := fmt.Fprint(c, mark, number); err != nil {
		return
	}
	timer := time.NewTimer(time.Until(late))
	defer timer.Stop()
	select {
	case <-arrived:
	case <-s.done:
	case <-timer.C:
	}
}

func (s *syslog) close() error {
	if s == nil {
		return nil
	}
	err := s.conn.Close()
	<-s.done
	if removeErr := os.Remove(s.path); !errors.Is(removeErr, fs.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	return err
}

// stampLength is the length of "Jan _2 15:04:05 ", which syslog(3) puts before a message
// (RFC 3164).
const stampLength = len(time.Stamp) + 1

// parseSyslog returns the name of the program that sent a message, and its text:
// "<27>Jan  2 15:04:05 nvidia-persistenced[12]: text". The name is "" where the message has
// another form.
func parseSyslog(message string) (ident, text string) {
	message = strings.TrimRight(message, "\x00\n")
	rest := message
	if strings.HasPrefix(rest, "<") {
		if _, after, ok := strings.Cut(rest, ">"); ok {
			rest = after
		}
	}
	if len(rest) < stampLength {
		return "", message
	}
	if _, err := time.Parse(time.Stamp, rest[:stampLength-1]); err != nil {
		return "", message
	}
	head, text, ok := strings.Cut(rest[stampLength:], ": ")
	if !ok {
		return "", message
	}
	ident, _, _ = strings.Cut(head, "[")
	if ident == "" || strings.ContainsAny(ident, " \t") {
		return "", message
	}
	return ident, text
}
