package runtimetest

// This file implements the runtime's side of NRI. It runs the code of
// containerd and CRI-O in a process of its own, so that it can be killed like them. Its
// socket then stays, as theirs does.

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/log"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// variable holds the runtime's name, version and socket in its process.
const variable = "GPUREADY_NRITEST"

// NRI is a runtime that accepts plugins.
type NRI struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startConfig is the configuration of a runtime's process.
type startConfig struct {
	Name, Version, Socket string
	Existing              json.RawMessage // a SynchronizeRequest
}

// command is a request to the process. Stop and remove are for containers that it
// created.
type command struct {
	Verb    string // "create", "stop" or "remove"
	Request json.RawMessage
}

// reply is the response of the runtime's process to a command.
type reply struct {
	Response json.RawMessage `json:",omitempty"`
	Error    string
}

// EnteredNRI must be called first in TestMain. In a process started by Start it runs the
// runtime until its standard input ends, and returns true. TestMain must then return.
func EnteredNRI() bool {
	var b startConfig
	if json.Unmarshal([]byte(os.Getenv(variable)), &b) != nil {
		return false
	}
	if err := serve(b); err != nil {
		fmt.Fprintln(os.Stderr, "runtimetest:", err)
	}
	return true
}

func serve(b startConfig) error {
	log.Set(quiet{})
	var existing api.SynchronizeRequest
	if err := protojson.Unmarshal(b.Existing, &existing); err != nil {
		return err
	}
	r, err := adaptation.New(b.Name, b.Version,
		func(ctx context.Context, synchronize adaptation.SyncCB) error {
			_, err := synchronize(ctx, existing.GetPods(), existing.GetContainers())
			return err
		},
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(b.Socket), adaptation.WithPluginPath(b.Socket+".none"), adaptation.WithPluginConfigPath(b.Socket+".none"))
	if err != nil {
		return err
	}
	if err := r.Start(); err != nil {
		return err
	}
	defer r.Stop()
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(reply{}); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var o command
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			return err
		}
		var request api.CreateContainerRequest
		if err := protojson.Unmarshal(o.Request, &request); err != nil {
			return err
		}
		if err := out.Encode(execute(r, o.Verb, &request)); err != nil {
			return err
		}
	}
	return nil
}

// execute makes the calls that containerd makes at a container's creation and end.
func execute(r *adaptation.Adaptation, verb string, request *api.CreateContainerRequest) reply {
	defer r.BlockPluginSync().Unblock()
	ctx := context.Background()
	var response proto.Message
	var err error
	switch verb {
	case "stop":
		response, err = r.StopContainer(ctx, &api.StopContainerRequest{Pod: request.GetPod(), Container: request.GetContainer()})
	case "remove":
		response, err = &api.Empty{}, r.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: request.GetPod(), Container: request.GetContainer()})
	default:
		response, err = r.CreateContainer(ctx, request)
	}
	if err != nil {
		return reply{Error: err.Error()}
	}
	data, err := protojson.Marshal(response)
	if err != nil {
		return reply{Error: err.Error()}
	}
	return reply{Response: data}
}

// StartNRI starts a runtime with the existing containers, and returns when plugins can
// connect to its socket.
func StartNRI(name, version, socket string, existing ...*api.SynchronizeRequest) (*NRI, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	var all api.SynchronizeRequest
	for _, t := range existing {
		all.Pods, all.Containers = append(all.Pods, t.GetPods()...), append(all.Containers, t.GetContainers()...)
	}
	list, err := protojson.Marshal(&all)
	if err != nil {
		return nil, err
	}
	args, err := json.Marshal(startConfig{Name: name, Version: version, Socket: socket, Existing: list})
	if err != nil {
		return nil, err
	}
	r := &NRI{cmd: exec.Command("/proc/self/exe")} //nolint:noctx // it ends with its standard input
	r.cmd.Env = append(os.Environ(), variable+"="+string(args))
	r.cmd.Stderr = os.Stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.out = bufio.NewReader(out)
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := r.read(); err != nil {
		return nil, errors.Join(err, r.Kill())
	}
	return r, nil
}

// Create calls the plugins for the creation of a container, and returns its adjustment.
func (r *NRI) Create(pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, error) {
	created, err := r.send("create", pod, container)
	if err != nil {
		return nil, err
	}
	var response api.CreateContainerResponse
	if err := protojson.Unmarshal(created.Response, &response); err != nil {
		return nil, err
	}
	return response.GetAdjust(), nil
}

// Stop notifies the plugins that a container has ended.
func (r *NRI) Stop(pod *api.PodSandbox, container *api.Container) error {
	_, err := r.send("stop", pod, container)
	return err
}

// Remove notifies the plugins that a container is removed.
func (r *NRI) Remove(pod *api.PodSandbox, container *api.Container) error {
	_, err := r.send("remove", pod, container)
	return err
}

func (r *NRI) send(verb string, pod *api.PodSandbox, container *api.Container) (reply, error) {
	data, err := protojson.Marshal(&api.CreateContainerRequest{Pod: pod, Container: container})
	if err != nil {
		return reply{}, err
	}
	line, err := json.Marshal(command{verb, data})
	if err != nil {
		return reply{}, err
	}
	if _, err := r.in.Write(append(line, '\n')); err != nil {
		return reply{}, err
	}
	return r.read()
}

func (r *NRI) read() (reply, error) {
	line, err := r.out.ReadBytes('\n')
	if err != nil {
		return reply{}, fmt.Errorf("the runtime ended: %w", err)
	}
	var response reply
	if err := json.Unmarshal(line, &response); err != nil {
		return reply{}, err
	}
	if response.Error != "" {
		return reply{}, errors.New(response.Error)
	}
	return response, nil
}

// Kill kills the runtime with SIGKILL. It may be called again.
func (r *NRI) Kill() error {
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = r.cmd.Wait() // the error only reports the kill
	return nil
}

// quiet is a logger that discards everything.
type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}
