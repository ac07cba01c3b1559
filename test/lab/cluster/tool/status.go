package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/gpuready/gpuready/test/lab/folder"
)

func down(o options) error {
	s, err := folder.FindRecord(o.name)
	if err != nil {
		return err
	}
	if err := s.End(); err != nil {
		return err
	}
	fmt.Printf("cluster %s is gone\n", o.name)
	return nil
}

// status shows one cluster if one was named, and all otherwise.
func status(ctx context.Context, o options) error {
	names := []string{o.name}
	if !o.flags.Changed("name") {
		names = folder.ListNames()
	}
	states := []folder.Record{} // [] in JSON, not null
	var errs []error
	for _, name := range names {
		s, err := folder.FindRecord(name)
		if err != nil {
			return err
		}
		if s.Process != 0 {
			errs = append(errs, s.Refresh(ctx))
		}
		states = append(states, s)
	}
	if o.output == "json" {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return errors.Join(append(errs, e.Encode(states))...)
	}
	if len(states) == 0 {
		fmt.Println("no cluster is up; bring one up with: cluster up")
	}
	return errors.Join(append(errs, show(os.Stdout, states, time.Now()))...)
}

func show(out io.Writer, states []folder.Record, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, s := range states {
		if s.Process == 0 {
			fmt.Fprintf(w, "%s\tcomes up\n", s.Name)
			continue
		}
		fmt.Fprintf(w, "%s\tup %v\tprocess %d\tKUBECONFIG=%s\n", s.Name, now.Sub(s.Since).Round(time.Second), s.Process, s.Kubeconfig)
		for _, n := range s.Nodes {
			how := "Ready"
			switch {
			case n.Ended:
				how = "ended: its first process was killed; " + revive(s.Name, n.Name)
			case !n.Ready:
				how = "not Ready: " + n.Message
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\tkubelet %s\t%s\n", n.Name, how, n.IP, cmp.Or(n.Kubelet, "?"), n.Runtime)
		}
	}
	return w.Flush()
}

// logs prints the log of a component, or lists the components.
func logs(ctx context.Context, o options) error {
	s, err := folder.FindRecord(o.name)
	if errors.Is(err, folder.ErrNotUp) {
		if failed := folder.PreservedLogs(o.name); isFolder(failed) {
			return fmt.Errorf("%w; the logs of the last one that failed to start are in %s", err, failed)
		}
	}
	if err != nil {
		return err
	}
	if o.component == "" {
		files, err := s.Logs()
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			fmt.Printf("%-24s %s\n", name, files[name])
		}
		return nil
	}
	file, err := s.Log(o.component)
	if err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return copyLog(ctx, f, o.follow)
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// copyLog copies a log to standard output. With follow it also copies what is added later.
func copyLog(ctx context.Context, f *os.File, follow bool) error {
	for {
		if _, err := io.Copy(os.Stdout, f); err != nil || !follow {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}
