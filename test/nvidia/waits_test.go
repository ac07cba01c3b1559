package nvidia

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
)

// A wait is time that passes between two moments in the logs of NVIDIA's containers.
type wait struct {
	name     string
	from, to moment
	says     string // what its program's source says of it
}

// A moment is the time of the first or last line that matches, in a container's log. Where line is
// modified, it is the time that the line names.
type moment struct {
	pod, container string // how the pod's name begins; the container's name
	line           *regexp.Regexp
	last           bool
}

func firstLine(pod, container, line string) moment {
	return moment{pod, container, regexp.MustCompile(line), false}
}

func lastLine(pod, container, line string) moment {
	return moment{pod, container, regexp.MustCompile(line), true}
}

// modified matches stat's line with the time at which a file was written, and captures that time.
var modified = regexp.MustCompile(`Modify: (\S+ \S+ \S+)`)

var (
	loaded       = lastLine("nvidia-driver-daemonset", "nvidia-driver-ctr", "the driver is loaded")
	probed       = moment{"nvidia-operator-validator", "driver-validation", modified, false} // .driver-ctr-ready was written
	driverSeen   = lastLine("nvidia-container-toolkit-daemonset", "driver-validation", "")
	installing   = lastLine("nvidia-container-toolkit-daemonset", "nvidia-container-toolkit-ctr", "Starting nvidia-ctk-installer")
	validating   = firstLine("nvidia-operator-validator", "driver-validation", "")
	toolkitReady = lastLine("nvidia-operator-validator", "toolkit-validation", "")
	pluginStarts = firstLine("nvidia-device-plugin-daemonset", "nvidia-device-plugin", "")
	registered   = firstLine("nvidia-device-plugin-daemonset", "nvidia-device-plugin", "Registered device plugin")
	cudaEnds     = lastLine("nvidia-cuda-validator", "nvidia-cuda-validator", "")
	cudaSeen     = lastLine("nvidia-operator-validator", "cuda-validation", "have run successfully")
	pluginAsked  = firstLine("nvidia-operator-validator", "plugin-validation", "")
	validated    = lastLine("nvidia-operator-validator", "nvidia-operator-validator", "all validations are successful")
)

// waits lead from a driver that is loaded to a node that is validated. From toolkitReady on the
// device plugin starts and the validator goes on side by side.
var waits = []wait{
	{"the driver's startup probe", loaded, probed, "initialDelaySeconds 60, periodSeconds 10"},
	{"the toolkit's init container sees it", probed, driverSeen, "polls every 5 s"},
	{"the toolkit's container starts the installer, for the last time", driverSeen, installing, "sleep 5"},
	{"containerd has restarted and the validator's pod starts", installing, validating, "containerd's unit waits 5 s; the kubelet tries a sandbox again after 10 to 15 s"},
	{"driver and toolkit are validated", validating, toolkitReady, "no wait"},
	{"the plugin's init container sees it", toolkitReady, pluginStarts, "polls every 5 s"},
	{"the plugin registers", pluginStarts, registered, "no wait"},
	{"the validator sees that its CUDA pod has ended", cudaEnds, cudaSeen, "polls every 5 s"},
	{"the validator sees the node's GPUs", pluginAsked, validated, "polls every 5 s; the kubelet's status every 10 s"},
}

// readWaits reads from a node's /var/log/pods how long each of the waits took. It fails if a moment
// is in no log.
func readWaits(pods, namespace string) ([]time.Duration, error) {
	var took []time.Duration
	for _, w := range waits {
		from, err := w.from.read(pods, namespace)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		to, err := w.to.read(pods, namespace)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		took = append(took, to.Sub(from))
	}
	return took, nil
}

// read finds the moment in the logs of the pods of a namespace.
func (m moment) read(pods, namespace string) (time.Time, error) {
	logs, err := filepath.Glob(filepath.Join(pods, namespace+"_"+m.pod+"-*", m.container, "*.log"))
	if err != nil {
		return time.Time{}, err
	}
	var found time.Time
	for _, path := range logs {
		err := readLog(path, func(at time.Time, line string) error {
			if !m.line.MatchString(line) {
				return nil
			}
			if stat := modified.FindStringSubmatch(line); m.line == modified && stat != nil {
				var err error
				if at, err = time.Parse("2006-01-02 15:04:05 -0700", stat[1]); err != nil {
					return err
				}
			}
			if found.IsZero() || m.last && at.After(found) || !m.last && at.Before(found) {
				found = at
			}
			return nil
		})
		if err != nil {
			return time.Time{}, err
		}
	}
	if found.IsZero() {
		return time.Time{}, fmt.Errorf("no log of %s, container %s, has a line %q", m.pod, m.container, m.line)
	}
	return found, nil
}

// readLog calls with for each line of a container's log. A line is "TIME STREAM F TEXT", as the CRI has it.
func readLog(path string, with func(at time.Time, line string) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), " ", 4)
		if len(fields) < 4 {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, fields[0])
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := with(at, fields[3]); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return lines.Err()
}

// appendWaits adds a sample's waits to a CSV file, which may not be there yet.
func appendWaits(path string, took []time.Duration) error {
	_, err := os.Stat(path)
	file, openErr := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if openErr != nil {
		return openErr
	}
	out := csv.NewWriter(file)
	if errors.Is(err, os.ErrNotExist) {
		var names []string
		for _, w := range waits {
			names = append(names, w.name)
		}
		_ = out.Write(names) // Flush reports it
	}
	var row []string
	for _, d := range took {
		row = append(row, strconv.FormatFloat(d.Seconds(), 'f', 2, 64))
	}
	_ = out.Write(row)
	out.Flush()
	return errors.Join(out.Error(), file.Close())
}

// writeWaits writes a table of the samples in such a file: minimum, median and maximum of each wait.
func writeWaits(to io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "Seconds, n = %d\nMIN\tP50\tMAX\tUNTIL\tITS SOURCE SAYS\n", len(rows)-1)
	for i, w := range waits {
		var column []float64
		for _, row := range rows[1:] {
			seconds, err := strconv.ParseFloat(row[i], 64)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			column = append(column, seconds)
		}
		slices.Sort(column)
		middle := (column[(len(column)-1)/2] + column[len(column)/2]) / 2
		fmt.Fprintf(out, "%.1f\t%.1f\t%.1f\t%s\t%s\n", column[0], middle, column[len(column)-1], w.name, w.says)
	}
	return out.Flush()
}

func TestWaitsAreReadFromLogs(t *testing.T) {
	dir := t.TempDir()
	write := func(pod, container, text string) {
		path := filepath.Join(dir, "gpu-operator_"+pod+"-x1_uid", container, "0.log")
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("nvidia-driver-daemonset", "nvidia-driver-ctr", "2026-11-25T06:33:22Z stdout F loading\n2026-11-25T06:33:27.5Z stdout F the driver is loaded\n")
	write("nvidia-operator-validator", "driver-validation", "2026-11-25T06:35:59Z stdout F Access: 2026-11-25 06:30:00 +0000\n2026-11-25T06:35:59Z stdout F Modify: 2026-11-25 06:34:30.649100671 +0000\n")
	_, err := readWaits(dir, "gpu-operator")
	require.ErrorContains(t, err, `the toolkit's init container sees it: no log of nvidia-container-toolkit-daemonset, container driver-validation`)
	from, err := loaded.read(dir, "gpu-operator")
	require.NoError(t, err)
	to, err := probed.read(dir, "gpu-operator")
	require.NoError(t, err)
	require.Equal(t, 63149100671*time.Nanosecond, to.Sub(from), "the file's own time counts, not the line's")
	write("nvidia-operator-validator", "driver-validation", "2026-11-25T06:35:59Z stdout F Modify: 2026-11-25 25:99:00 +0000\n")
	_, err = probed.read(dir, "gpu-operator")
	require.ErrorContains(t, err, "0.log: parsing time")

	table := filepath.Join(dir, "waits.csv")
	for _, seconds := range []time.Duration{3, 1, 2} {
		require.NoError(t, appendWaits(table, slices.Repeat([]time.Duration{seconds * time.Second}, len(waits))))
	}
	var out strings.Builder
	require.NoError(t, writeWaits(&out, table))
	require.Contains(t, out.String(), "n = 3")
	require.Regexp(t, `1\.0  2\.0  3\.0  the plugin registers`, out.String())
}
