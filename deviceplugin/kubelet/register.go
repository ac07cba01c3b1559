package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The kubelet creates its socket before it accepts on it, and no event signals when it
// does. Connecting to a unix socket costs microseconds, so the first attempts are close
// together. A socket that stays dead is left over from a killed kubelet; its successor
// creates a new one, which is an event.
const (
	firstPause = 500 * time.Microsecond
	lastPause  = time.Second
)

// registerTimeout bounds the call. The kubelet calls the plugin back before it responds
// and allows 10 s for that.
const registerTimeout = 15 * time.Second

// dialUntilAccepted dials the socket repeatedly until a connection is accepted, the socket is
// gone, or ctx ends.
func dialUntilAccepted(ctx context.Context, socket string) (net.Conn, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return conn, nil
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// callRegister calls the kubelet's Register over an existing connection: gRPC's own
// dialling would wait a second after the first refusal.
func callRegister(ctx context.Context, conn net.Conn, req *v1beta1.RegisterRequest) error {
	pending := make(chan net.Conn, 1)
	pending <- conn
	client, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-pending:
				return c, nil
			default:
				return nil, errors.New("the kubelet closed the connection")
			}
		}))
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer func() {
		_ = client.Close()
		select {
		case c := <-pending:
			_ = c.Close() // gRPC never dialled
		default:
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(client).Register(ctx, req)
	return err
}
