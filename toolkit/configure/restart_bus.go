package configure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"github.com/godbus/dbus/v5"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/watch"
)

// The host's sockets of systemd: the system's message bus, and systemd's own socket, which
// only serves root and exists without a bus.
const (
	systemBus = "/run/dbus/system_bus_socket"
	private   = "/run/systemd/private"
)

// Names of org.freedesktop.systemd1(5).
const (
	service      = "org.freedesktop.systemd1"
	managerIface = service + ".Manager"
	managerPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	daemonIface  = "org.freedesktop.DBus"
)

// systemd is a connection to the host's systemd.
type systemd struct {
	conn    *dbus.Conn
	where   string // the socket
	signals chan *dbus.Signal
}

// dial connects to systemd and subscribes to the signals about jobs. The connection ends
// with ctx.
func dial(ctx context.Context, root *host.Root) (*systemd, error) {
	s, err := connect(ctx, root, systemBus)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		var second error
		if s, second = connect(ctx, root, private); second != nil {
			next := "mount the host's /run/dbus"
			if errors.Is(err, syscall.ECONNREFUSED) {
				next = "nothing listens there: systemctl status dbus.socket on the host"
			}
			return nil, fmt.Errorf("systemd of the host is %w: %w; %w: %s", errNotThere, err, second, next)
		}
	} else if err != nil {
		return nil, err
	}
	if err := s.subscribe(ctx); err != nil {
		_ = s.conn.Close()
		return nil, err
	}
	return s, nil
}

func connect(ctx context.Context, root *host.Root, where string) (*systemd, error) {
	s := &systemd{where: where, signals: make(chan *dbus.Signal, 64)}
	raw, err := watch.Dial(ctx, root, where)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, s.explain(ctx, "the connection was not accepted", err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("no permission to connect to %s: %w; run as root, and let SELinux and AppArmor allow it", where, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	if s.conn, err = dbus.NewConn(raw, dbus.WithContext(ctx)); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	s.conn.Signal(s.signals)
	err = s.conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))})
	if err == nil && where == systemBus {
		err = s.conn.Hello()
	}
	if err != nil {
		_ = s.conn.Close()
		return nil, s.explain(ctx, "the connection was not accepted", err)
	}
	return s, nil
}

// subscribe subscribes to signals before a job is requested.
func (s *systemd) subscribe(ctx context.Context) error {
	if s.where == systemBus {
		for _, match := range [][]dbus.MatchOption{
			{dbus.WithMatchSender(service), dbus.WithMatchInterface(managerIface), dbus.WithMatchMember("JobRemoved")},
			{dbus.WithMatchSender(daemonIface), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, service)},
		} {
			if err := s.conn.AddMatchSignalContext(ctx, match...); err != nil {
				return s.explain(ctx, "the bus refuses the subscription", err)
			}
		}
	}
	return s.call(ctx, managerPath, managerIface+".Subscribe").Err
}

// call calls a method of systemd. The result's Err is an explained error.
func (s *systemd) call(ctx context.Context, path dbus.ObjectPath, method string, args ...any) *dbus.Call {
	call := s.conn.Object(service, path).CallWithContext(ctx, method, 0, args...)
	if call.Err != nil {
		call.Err = s.explain(ctx, "systemd refuses "+method[len(service)+1:], call.Err)
	}
	return call
}

// property reads a property of an object.
func (s *systemd) property(ctx context.Context, path dbus.ObjectPath, iface, name string) (any, error) {
	var v dbus.Variant
	err := s.conn.Object(service, path).CallWithContext(ctx, daemonIface+".Properties.Get", 0, service+"."+iface, name).Store(&v)
	if err != nil {
		return nil, s.explain(ctx, "systemd does not return "+name, err)
	}
	return v.Value(), nil
}

// explain wraps an error with its context and a remedy.
func (s *systemd) explain(ctx context.Context, what string, err error) error {
	var reply dbus.Error
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %s: no response in time: %w; check systemctl is-system-running", s.where, what, ctx.Err())
	case errors.As(err, &reply):
		return fmt.Errorf("%s: %s: %w (%s)%s", s.where, what, err, reply.Name, busAdvice[reply.Name])
	default:
		return fmt.Errorf("%s: %s: the connection ended: %w; systemctl status dbus.service", s.where, what, err)
	}
}

// busAdvice maps the names of D-Bus errors to remedies.
var busAdvice = map[string]string{
	daemonIface + ".Error.AccessDenied":                     denied,
	daemonIface + ".Error.AuthFailed":                       denied,
	daemonIface + ".Error.InteractiveAuthorizationRequired": denied,
	daemonIface + ".Error.ServiceUnknown":                   "; systemd is not on this bus: check that it is the host's",
	daemonIface + ".Error.NameHasNoOwner":                   "; systemd is not on this bus: check that it is the host's",
	noReply:                                                 "; systemd left the bus before it responded: see systemctl status, the job may continue",
	service + ".JobTypeNotApplicable":                       "; the unit has no ExecReload: restart it",
}

// noReply is the bus's answer if systemd has gone before it answered.
const noReply = daemonIface + ".Error.NoReply"

const denied = "; run as root of the host, and let polkit, SELinux and AppArmor allow it, or restart the runtime by hand"
