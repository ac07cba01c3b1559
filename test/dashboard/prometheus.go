package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

// prometheusServer is a running Prometheus.
type prometheusServer struct {
	cmd  *exec.Cmd
	base string // "http://127.0.0.1:1234"
}

// interval is the time between two scrapes, and the resolution of the drawing.
const interval = 5 * time.Second

// scrapeConfig is Prometheus' configuration; %q is the file of the pods that it scrapes, see writeTargets.
const scrapeConfig = `
global: { scrape_interval: 5s, scrape_timeout: 4s }
scrape_configs: [{ job_name: gpuready, file_sd_configs: [{ files: [%q], refresh_interval: 5s }] }]
`

// startPrometheus fetches Prometheus from Debian, if it is not in the cache, and starts it on the data
// below dir. If targets is not "", it scrapes the pods in that file.
func startPrometheus(ctx context.Context, dir, targets string) (*prometheusServer, error) {
	cache, err := binaries.DefaultCache()
	if err != nil {
		return nil, err
	}
	root, err := binaries.EnsureDebian(ctx, cache, binaries.Prometheus, os.Stderr)
	if err != nil {
		return nil, err
	}
	config := "global: {}\n"
	if targets != "" {
		config = fmt.Sprintf(scrapeConfig, targets)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "prometheus.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	p := &prometheusServer{base: "http://" + address}
	p.cmd = exec.Command(filepath.Join(root, "usr/bin/prometheus"),
		"--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--storage.tsdb.retention.time=10y",
		"--web.listen-address="+address, "--log.level=warn")
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if err := p.waitReady(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start Prometheus, see %s: %w", log.Name(), err), p.close())
	}
	return p, nil
}

// freeAddress returns a local address on which nothing listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (p *prometheusServer) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+"/-/ready", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// close ends Prometheus, which writes its data.
func (p *prometheusServer) close() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.cmd.Wait()
}

// sample is a value at a time, as Prometheus' API writes it: [1700000000, "1.5"].
type sample struct {
	seconds, value float64
}

func (s *sample) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &[]any{&s.seconds, &text}); err != nil {
		return err
	}
	var err error
	s.value, err = strconv.ParseFloat(text, 64)
	return err
}

// series is a series of a result, with one sample or one a step.
type series struct {
	Metric map[string]string
	Value  sample
	Values []sample
}

// span is the time that a recording covers.
type span struct{ From, To time.Time }

// query evaluates an expression at the end of a span or, with whole, at each step of it.
func (p *prometheusServer) query(ctx context.Context, expr string, s span, whole bool) ([]series, error) {
	v, path := url.Values{"query": {expr}}, "/api/v1/query"
	if whole {
		path = "/api/v1/query_range"
		v.Set("start", formatTime(s.From))
		v.Set("end", formatTime(s.To))
		v.Set("step", strconv.Itoa(int(interval.Seconds())))
	} else {
		v.Set("time", formatTime(s.To))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path+"?"+v.Encode(), nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	var answer struct {
		Error string
		Data  struct{ Result []series }
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("query %s: %s", expr, answer.Error)
	}
	return answer.Data.Result, nil
}

func formatTime(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
