package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// bareCommand, as the first argument, makes this program the server side of bare.
const bareCommand = "bare-plugin"

// bare measures the pure cost of a call on this machine. A device plugin with gRPC's defaults, in
// a separate process, returns an empty response and sends a list on request.
func (b *bench) bare(ctx context.Context) error {
	dir, err := os.MkdirTemp(b.tmp, "b")
	if err != nil {
		return err
	}
	socket := filepath.Join(dir, "s")
	cmd := exec.CommandContext(ctx, "/proc/self/exe", bareCommand, socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it listens
		return err
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	plugin := v1beta1.NewDevicePluginClient(conn)
	took, err := repeat(b.allocations, func() error {
		_, err := plugin.Allocate(ctx, &v1beta1.AllocateRequest{})
		return err
	})
	if err != nil {
		return err
	}
	show("for comparison: an empty Allocate, answered empty", took, goal{})

	stream, err := plugin.ListAndWatch(ctx, &v1beta1.Empty{})
	if err != nil {
		return err
	}
	took, err = repeat(8*b.starts, func() error {
		_, err := in.Write([]byte{'\n'})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}, func() { time.Sleep(calm) })
	if err != nil {
		return err
	}
	show("for comparison: an idle plugin is told of an event → its list has come", took, goal{})
	return nil
}

// barePlugin sends a list for each byte of its standard input.
type barePlugin struct {
	v1beta1.UnimplementedDevicePluginServer
}

func (barePlugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	list := &v1beta1.ListAndWatchResponse{}
	for i := range 8 {
		list.Devices = append(list.Devices, &v1beta1.Device{ID: fmt.Sprintf("GPU-%036d", i), Health: v1beta1.Healthy})
	}
	for one := make([]byte, 1); ; {
		if _, err := os.Stdin.Read(one); err != nil {
			return err
		}
		if err := stream.Send(list); err != nil {
			return err
		}
	}
}

func (barePlugin) Allocate(context.Context, *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	return &v1beta1.AllocateResponse{}, nil
}

func serveBare(socket string) error {
	ln, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, barePlugin{})
	_, err = os.Stdout.WriteString("listening\n")
	return errors.Join(err, server.Serve(ln))
}
