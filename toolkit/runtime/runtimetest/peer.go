package runtimetest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/godbus/dbus/v5"
)

// StartPrivateSystemd is like StartSystemd for a host without a message bus: systemd serves its own
// socket, /run/systemd/private, without Hello and match rules.
func StartPrivateSystemd(root string, units map[string]string, act Act) (*Systemd, error) {
	s := newSystemd(act, units)
	dir := filepath.Join(root, "run/systemd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("runtimetest: %w", err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "private")) //nolint:noctx // Close ends it
	if err != nil {
		return nil, fmt.Errorf("runtimetest: %w", err)
	}
	l := &private{systemd: s, listener: listener, conns: map[net.Conn]bool{}}
	l.running.Go(l.accept)
	s.ends = append(s.ends, l.close)
	return s, nil
}

// private serves systemd's own socket.
type private struct {
	systemd  *Systemd
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // nil once closed
}

func (l *private) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return // it was closed
		}
		if !l.add(conn) {
			return
		}
		l.running.Go(func() {
			defer conn.Close()
			p := &peer{systemd: l.systemd, conn: conn}
			_ = p.serve() // it has disconnected
		})
	}
}

func (l *private) add(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		_ = conn.Close()
		return false
	}
	l.conns[conn] = true
	return true
}

func (l *private) close() error {
	err := l.listener.Close()
	l.mu.Lock()
	for conn := range l.conns {
		_ = conn.Close() // possibly closed already
	}
	l.conns = nil
	l.mu.Unlock()
	l.running.Wait()
	return err
}

// peer is a client's connection.
type peer struct {
	systemd *Systemd
	conn    net.Conn
	mu      sync.Mutex // one message is written at a time
	serial  uint32
}

func (p *peer) serve() error {
	in := bufio.NewReader(p.conn)
	if err := p.authenticate(in); err != nil {
		return err
	}
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return err
		}
		if err := p.respond(call); err != nil {
			return err
		}
	}
}

// authenticate performs the handshake of the D-Bus specification, "Authentication
// Protocol". Any client that can open the socket is root and accepted.
func (p *peer) authenticate(in *bufio.Reader) error {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		reply := "REJECTED EXTERNAL"
		switch words := strings.Fields(strings.TrimLeft(line, "\x00")); {
		case len(words) == 0:
			return errors.New("an empty line")
		case words[0] == "BEGIN":
			return nil
		case words[0] == "DATA", words[0] == "AUTH" && len(words) == 3:
			reply = "OK 0123456789abcdef0123456789abcdef"
		case words[0] == "AUTH" && len(words) == 2:
			reply = "DATA"
		}
		if _, err := fmt.Fprintf(p.conn, "%s\r\n", reply); err != nil {
			return err
		}
	}
}

func (p *peer) respond(call *dbus.Message) error {
	body, err := p.call(call)
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
	}, Body: body}
	if err != nil {
		reply.Type, reply.Body = dbus.TypeError, err.Body
		reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant(err.Name)
	}
	return p.send(reply)
}

func (p *peer) call(call *dbus.Message) ([]any, *dbus.Error) {
	var words [2]string
	for i := range min(len(call.Body), len(words)) {
		words[i], _ = call.Body[i].(string)
	}
	object, _ := call.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
	switch member := call.Headers[dbus.FieldMember].Value(); member {
	case "Subscribe":
		p.systemd.subscribe(fmt.Sprintf("%p", p), p.notify)
		return nil, nil
	case "GetUnit":
		unit, err := p.systemd.getUnit(words[0])
		return []any{unit}, err
	case "ResetFailedUnit":
		return nil, p.systemd.resetFailed(words[0])
	case "RestartUnit", "ReloadUnit":
		verb := map[any]string{"RestartUnit": "restart", "ReloadUnit": "reload"}[member]
		job, err := p.systemd.start(verb, words[0], words[1])
		return []any{job}, err
	case "Get":
		value, err := p.systemd.get(object, words[0], words[1])
		return []any{value}, err
	}
	return nil, dbus.NewError("org.freedesktop.DBus.Error.UnknownMethod", []any{"no such method"})
}

// notify sends the signal of a job's end.
func (p *peer) notify(body ...any) error {
	return p.send(&dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath(path)), dbus.FieldInterface: dbus.MakeVariant(manager),
		dbus.FieldMember: dbus.MakeVariant("JobRemoved"),
	}, Body: body})
}

func (p *peer) send(m *dbus.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serial++
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	var b bytes.Buffer
	if err := m.EncodeTo(&b, binary.LittleEndian); err != nil {
		return err
	}
	data := b.Bytes()
	binary.LittleEndian.PutUint32(data[8:], p.serial) // the library only sets it on a connection
	_, err := p.conn.Write(data)
	return err
}
