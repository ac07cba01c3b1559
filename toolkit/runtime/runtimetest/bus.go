package runtimetest

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/godbus/dbus/v5"
)

// StartSystemd starts a message bus at /run/dbus/system_bus_socket below root, with a
// systemd on it that has the units in those states. dbus-daemon has to be installed.
func StartSystemd(root string, units map[string]string, act Act) (*Systemd, error) {
	s := newSystemd(act, units)
	address, err := s.bus(filepath.Join(root, "run/dbus"))
	if err == nil {
		err = s.serve(address)
	}
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("runtimetest: %w", err)
	}
	return s, nil
}

// bus starts dbus-daemon and returns its address.
func (s *Systemd) bus(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	var address strings.Builder
	socket := "unix:path=" + dbus.EscapeBusAddressValue(filepath.Join(dir, "system_bus_socket"))
	if err := xml.EscapeText(&address, []byte(socket)); err != nil {
		return "", err
	}
	config := filepath.Join(dir, "bus.conf")
	err := os.WriteFile(config, []byte(`<busconfig><type>session</type><listen>`+address.String()+`</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`), 0o600)
	if err != nil {
		return "", err
	}
	daemon := exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile", "--print-address") //nolint:noctx // Close ends it
	out, err := daemon.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := daemon.Start(); err != nil {
		return "", err
	}
	s.ends = append(s.ends, func() error {
		_ = daemon.Process.Kill() // it may have ended
		_ = daemon.Wait()
		return os.RemoveAll(dir)
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(line), err
}

// serve registers systemd's name on a bus and serves its methods.
func (s *Systemd) serve(address string) error {
	conn, err := dbus.Connect(address)
	if err != nil {
		return err
	}
	s.ends = append(s.ends, conn.Close)
	notify := func(body ...any) error { return conn.Emit(path, manager+".JobRemoved", body...) }
	if err := conn.ExportMethodTable(map[string]any{
		"Subscribe":       func() *dbus.Error { s.subscribe("bus", notify); return nil },
		"GetUnit":         s.getUnit,
		"ResetFailedUnit": s.resetFailed,
		"RestartUnit":     func(name, mode string) (dbus.ObjectPath, *dbus.Error) { return s.start("restart", name, mode) },
		"ReloadUnit":      func(name, mode string) (dbus.ObjectPath, *dbus.Error) { return s.start("reload", name, mode) },
	}, path, manager); err != nil {
		return err
	}
	if err := conn.ExportSubtreeMethodTable(map[string]any{
		"Get": func(m dbus.Message, iface, name string) (dbus.Variant, *dbus.Error) {
			object, _ := m.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
			return s.get(object, iface, name)
		},
	}, path+"/unit", "org.freedesktop.DBus.Properties"); err != nil {
		return err
	}
	if _, err := conn.RequestName(service, dbus.NameFlagDoNotQueue); err != nil {
		return err
	}
	return nil
}

// Disconnect removes systemd from the bus, as if it had died; the bus stays.
func (s *Systemd) Disconnect() error {
	s.mu.Lock()
	end := s.ends[len(s.ends)-1]
	s.ends = s.ends[:len(s.ends)-1]
	s.mu.Unlock()
	return end()
}
