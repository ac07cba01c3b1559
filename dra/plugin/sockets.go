package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/dra/inventory"
)

// removeStaleSockets removes the sockets of earlier instances that were killed: the kubelet would go on
// trying to reach them. With rolling updates each instance has sockets of its own, and one that runs
// accepts the connection. All names of this driver's sockets begin with its name: the third form of
// kubeletplugin.RollingUpdateRegistrarSocketFile, "dra-<hash>-reg.sock", is no shorter than the second with
// this name, so that it never fits where the second does not.
func (p *Plugin) removeStaleSockets(ctx context.Context) {
	for _, pattern := range []string{
		filepath.Join(p.cfg.KubeletDir, "plugins_registry", inventory.Driver+"-*reg.sock"),
		filepath.Join(p.cfg.DataDir(), "dra*.sock"),
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			continue // the pattern is invalid; then there is nothing of ours
		}
		for _, path := range paths {
			if !isAbandoned(ctx, path) {
				continue
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				p.cfg.Log.Warn("the socket of an instance that was killed cannot be removed", "path", path, "message", err.Error())
				continue
			}
			p.cfg.Log.Info("removed the socket of an instance that was killed", "path", path)
		}
	}
}

// isAbandoned reports whether nobody listens on a socket.
func isAbandoned(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
