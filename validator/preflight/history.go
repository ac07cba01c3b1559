package preflight

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// keptResults is the number of results kept, the newest ones.
const keptResults = 50

// maxResultBytes bounds one result. One of 16 GPUs with 7 MIG devices each takes about 300 kB.
const maxResultBytes = 4 << 20

// historyStamp is the layout of the time that a result's file is named after; such names sort by time.
const historyStamp = "20060102T150405.000Z"

// ReadHistory returns the results in dir, the oldest first. It skips files that are no result of
// this version. A missing folder holds none.
func ReadHistory(dir string) ([]Result, error) {
	names, err := listResults(dir)
	if err != nil {
		return nil, err
	}
	var all []Result
	for _, name := range names {
		data, err := record.Read(filepath.Join(dir, name), maxResultBytes)
		if err != nil {
			continue // removed by another run meanwhile, or unreadable
		}
		var r Result
		if json.Unmarshal(data, &r) == nil && r.Schema == ResultSchema {
			all = append(all, r)
		}
	}
	return all, nil
}

// WriteHistory stores a result, and removes the oldest ones so that keptResults remain.
func WriteHistory(dir string, r Result) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := record.Write(filepath.Join(dir, r.Time.UTC().Format(historyStamp)+".json"), append(data, '\n')); err != nil {
		return fmt.Errorf("keeping the result: %w", err)
	}
	names, err := listResults(dir)
	if err != nil {
		return err
	}
	for _, name := range names[:max(0, len(names)-keptResults)] {
		if err := record.Remove(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("removing an old result: %w", err)
		}
	}
	return nil
}

// listResults returns the names of results, in the order of their times.
func listResults(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the results of earlier runs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if at, ok := strings.CutSuffix(e.Name(), ".json"); ok && e.Type().IsRegular() {
			if _, err := time.Parse(historyStamp, at); err == nil {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// notedLoss: a figure, such as a speed, that is more than this share below the GPU's best earlier one gets a note.
const notedLoss = 0.05

// CompareHistory compares a result with past ones of the same node, which must be sorted, the oldest
// first. It sets each figure's last and best earlier value, and adds notes about figures that are lower
// and about GPUs that were added, removed, moved or exchanged, and findings about NVLinks that were up
// before. Results of a simulated driver are not compared with those of a real one.
func CompareHistory(r *Result, past []Result) {
	past = slices.DeleteFunc(slices.Clone(past), func(p Result) bool { return p.Simulated != r.Simulated })
	if len(past) == 0 {
		return
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		for k := range g.Figures {
			compareFigure(g, &g.Figures[k], past)
		}
		compareNVLinks(g, past)
	}
	r.Settle()
	noteExchanged(r, past[len(past)-1])
}

// compareFigure sets f.Last and f.Best from the earlier results that have this figure of this GPU, and notes a
// loss. Higher is better.
func compareFigure(g *GPU, f *Figure, past []Result) {
	runs := 0 // that have the figure
	for _, p := range past {
		i := slices.IndexFunc(p.GPUs, func(o GPU) bool { return o.UUID == g.UUID })
		if i < 0 {
			continue
		}
		if was, ok := p.GPUs[i].Find(f.Name); ok && was.Value > 0 {
			f.Last, f.Best = was.Value, max(f.Best, was.Value)
			runs++
		}
	}
	if f.Value > 0 && f.Value < f.Best*(1-notedLoss) {
		g.Notes = append(g.Notes, fmt.Sprintf("%s: %s is %.0f %% below its best of %s, %s",
			f.Name, Speed(f.Value, f.Unit), 100*(1-f.Value/f.Best), countNoun(runs, "earlier run"), Speed(f.Best, f.Unit)))
	}
}

// noteExchanged adds notes about GPUs that differ from those of the run before.
func noteExchanged(r *Result, last Result) {
	at := map[gpu.PCIAddress]GPU{}
	by := map[gpu.UUID]GPU{}
	for _, g := range wholeGPUs(r.GPUs) {
		at[g.PCI], by[g.UUID] = g, g
	}
	since := last.Time.Format(time.RFC3339)
	accounted := map[gpu.UUID]bool{} // was there before, or is noted as the replacement of one that was
	for _, g := range wholeGPUs(last.GPUs) {
		accounted[g.UUID] = true
		now, there := at[g.PCI]
		moved, still := by[g.UUID]
		switch {
		case still && moved.PCI != g.PCI:
			r.Notes = append(r.Notes, fmt.Sprintf("since %s %s moved from %s to %s", since, g.UUID, g.PCI, moved.PCI))
		case still:
		case there:
			r.Notes = append(r.Notes, fmt.Sprintf("since %s the GPU at %s was exchanged: %s, before it %s", since, g.PCI, now.UUID, g.UUID))
			accounted[now.UUID] = true
		default:
			r.Notes = append(r.Notes, fmt.Sprintf("since %s %s at %s is not there any more", since, g.UUID, g.PCI))
		}
	}
	for _, g := range wholeGPUs(r.GPUs) {
		if !accounted[g.UUID] {
			r.Notes = append(r.Notes, fmt.Sprintf("since %s %s at %s is new", since, g.UUID, g.PCI))
		}
	}
}

// wholeGPUs returns the physical GPUs. It leaves out the entries of MIG devices.
func wholeGPUs(gpus []GPU) []GPU {
	return slices.DeleteFunc(slices.Clone(gpus), func(g GPU) bool { return g.Parent != "" })
}
