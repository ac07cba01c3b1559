package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

const (
	maxRequest = 4 << 10
	maxAnswer  = 64 << 10
	// callLimit bounds one request on the server: NVML's own limit is 20 s for a call.
	callLimit = 30 * time.Second
)

// Server serves the socket.
type Server struct {
	Socket string
	// Maker returns the open driver; nil: there is none.
	Maker func() Maker
	// Changed is called after the MIG layout has changed.
	Changed func()
	Log     *slog.Logger

	one     *sync.Mutex // a request, with what is undone of it, is not mixed with another
	noticed func()      // called when the client of a request has gone; nil: nobody is interested
}

// Run serves until ctx ends, and then returns nil. A request that is under way is finished.
func (s Server) Run(ctx context.Context) error {
	if err := os.Remove(s.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("serve requests for partitions: %w", err)
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.Socket)
	if err != nil {
		return fmt.Errorf("serve requests for partitions: %w", err)
	}
	if err := os.Chmod(s.Socket, 0o600); err != nil { // root alone, as the capability mig/config
		return errors.Join(fmt.Errorf("serve requests for partitions: %w", err), ln.Close())
	}
	mux := http.NewServeMux()
	s.one = &sync.Mutex{}
	for path, do := range map[string]operation{"/instances": s.instances, "/create": s.create, "/destroy": s.destroy} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { s.handle(w, r, do) })
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug)}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		defer cancel()
		_ = server.Shutdown(ending)
	})
	err = server.Serve(ln)
	if !stop() {
		<-stopped
		return nil
	}
	return fmt.Errorf("serve requests for partitions: %w", err)
}

// operation does what a request asks for. gone ends when the client has gone.
type operation func(ctx, gone context.Context, maker Maker, at gpu.Placement) (answer, error)

// handle reads a request, has it done, and answers. Once begun it is done even if the client has gone.
func (s Server) handle(w http.ResponseWriter, r *http.Request, do operation) {
	var q gpu.Placement
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	if err := d.Decode(&q); err != nil || q.GPU == "" || q.Profile < 0 || q.Start < 0 || q.Size <= 0 || q.Start+q.Size > 64 {
		http.Error(w, "want a placement: gpu, profile, start, size", http.StatusBadRequest)
		return
	}
	if s.noticed != nil {
		defer context.AfterFunc(r.Context(), s.noticed)()
	}
	s.one.Lock() // not before the request is read: another client may never send all of its own
	defer s.one.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), callLimit)
	defer cancel()
	began := time.Now()
	var a answer
	err := ErrUnavailable
	if maker := s.Maker(); maker != nil {
		a, err = do(ctx, r.Context(), maker, q)
	}
	a.DriverTime = time.Since(began)
	s.report(r.URL.Path[1:], q, &a, err)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a)
}

// report logs the result of a request and completes its answer.
func (s Server) report(operation string, q gpu.Placement, a *answer, err error) {
	log := s.Log.With("operation", operation, "uuid", string(q.GPU), "profile", q.Profile, "start", q.Start, "duration", a.DriverTime.Round(time.Millisecond))
	if err != nil {
		a.Code, a.Message, a.Partition = codeOf(err), err.Error(), nil
		log.Error("the request for a partition failed", "message", a.Message)
	}
	if operation == "instances" || errors.Is(err, ErrUnavailable) {
		return
	}
	if err == nil {
		log.Info("the MIG layout was changed")
	}
	s.Changed()
}

// create creates a partition, and destroys it again if its client has gone meanwhile: only this
// process knows for certain that nobody else has created it.
func (s Server) create(ctx, gone context.Context, maker Maker, at gpu.Placement) (answer, error) {
	if gone.Err() != nil { // while others were served; its driver may have had the place destroyed since
		return answer{}, fmt.Errorf("%w: its client has gone", ErrUnavailable)
	}
	made, err := maker.CreatePartition(ctx, at)
	if err != nil {
		return answer{}, err
	}
	if gone.Err() != nil {
		if err := maker.DestroyPartition(ctx, at); err != nil {
			return answer{}, fmt.Errorf("%w: its client has gone, and removing it failed: %w", gpu.ErrLeftover, err)
		}
		return answer{}, errors.New("its client has gone: the partition was removed again")
	}
	return answer{Partition: &made}, nil
}

func (s Server) destroy(ctx, _ context.Context, maker Maker, at gpu.Placement) (answer, error) {
	return answer{}, maker.DestroyPartition(ctx, at)
}

func (s Server) instances(ctx, _ context.Context, maker Maker, at gpu.Placement) (answer, error) {
	all, err := maker.Instances(ctx, at.GPU)
	return answer{Instances: all}, err
}
