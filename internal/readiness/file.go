package readiness

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// A file is built from lines in the order in which they are added.
type file struct {
	b   strings.Builder
	err error
}

func (f *file) add(key, value string) {
	if f.err == nil && (strings.ContainsFunc(value, unicode.IsControl) || !utf8.ValidString(value)) {
		// People grep for one line per key; messages are cleaned before.
		f.err = fmt.Errorf("%s has a control character or is not UTF-8", key)
	}
	f.b.WriteString(key + "=" + quote(value) + "\n")
}

func (f *file) bytes() ([]byte, error) {
	if f.err == nil && f.b.Len() > maxBytes {
		f.err = fmt.Errorf("%d bytes are too many", f.b.Len())
	}
	return []byte(f.b.String()), f.err
}

func (f *file) head(l Layer, boot string, t time.Time) {
	if boot == "" && f.err == nil {
		boot, f.err = nodestate.BootID()
	}
	if t.IsZero() {
		t = time.Now()
	}
	f.add("LAYER", string(l))
	f.add("BOOT_ID", boot)
	f.add("TIME", t.UTC().Format(time.RFC3339Nano))
}

func (p Proof) encode(l Layer) ([]byte, error) {
	f := &file{}
	f.head(l, p.BootID, p.Time)
	f.add("SUMMARY", record.Clean(p.Summary, 1024))
	f.add("GPUS", strconv.Itoa(p.GPUs))
	if d := p.Driver; d != nil {
		f.add("DRIVER_ROOT", d.Root)
		f.add("DRIVER_VERSION", d.Version)
		f.add("CUDA_VERSION", d.CUDAVersion)
		if d.Simulated {
			f.add("SIMULATED", "true")
		}
		// Keys that shell readers of NVIDIA's file of this name expect: whose driver
		// it is, and each root on the host and as mounted here.
		host, dev := orRoot(p.HostRoot), orRoot(p.DevRoot)
		f.add("IS_HOST_DRIVER", strconv.FormatBool(filepath.Clean(d.Root) == "/"))
		f.add("NVIDIA_DRIVER_ROOT", d.Root)
		f.add("DRIVER_ROOT_CTR_PATH", filepath.Join(host, d.Root))
		f.add("NVIDIA_DEV_ROOT", dev)
		f.add("DEV_ROOT_CTR_PATH", filepath.Join(host, dev))
	}
	f.add("SECONDS_BY_GPU", join(p.Seconds, func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }))
	f.add("RESOURCES", join(p.Resources, strconv.Itoa))
	if len(p.Unproven) > 0 {
		f.add("UNPROVEN_BY_GPU", join(p.Unproven, func(r gpu.Reason) string { return string(r) }))
	}
	return f.bytes()
}

func (r NotReady) encode(l Layer) ([]byte, error) {
	f := &file{}
	f.head(l, r.BootID, r.Time)
	f.add("REASON", string(r.Reason))
	f.add("MESSAGE", record.Clean(r.Message, 4096))
	f.add("ACTION", record.Clean(r.Action, 4096))
	return f.bytes()
}

func orRoot(path string) string {
	if path == "" {
		return "/"
	}
	return path
}

// join writes a map as "key=value key=value", sorted.
func join[K ~string, V any](m map[K]V, text func(V) string) string {
	var pairs []string
	for k, v := range m {
		pairs = append(pairs, string(k)+"="+text(v))
	}
	slices.Sort(pairs)
	return strings.Join(pairs, " ")
}

func split(s string, each func(key, value string) error) error {
	for pair := range strings.FieldsSeq(s) {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return fmt.Errorf("%q is no key=value", pair)
		}
		if err := each(key, value); err != nil {
			return err
		}
	}
	return nil
}

func decodeHead(v map[string]string, l Layer) (time.Time, error) {
	if v["LAYER"] != string(l) {
		return time.Time{}, fmt.Errorf("%w: LAYER is %q", ErrInvalid, v["LAYER"])
	}
	t, err := time.Parse(time.RFC3339Nano, v["TIME"])
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: TIME: %w", ErrInvalid, err)
	}
	return t, nil
}

func decodeProof(v map[string]string, l Layer) (*Proof, error) {
	t, err := decodeHead(v, l)
	if err != nil {
		return nil, err
	}
	p := &Proof{BootID: v["BOOT_ID"], Time: t, Summary: v["SUMMARY"], DevRoot: v["NVIDIA_DEV_ROOT"]}
	if p.GPUs, err = strconv.Atoi(v["GPUS"]); err != nil || p.GPUs < 0 {
		return nil, fmt.Errorf("%w: GPUS is %q", ErrInvalid, v["GPUS"])
	}
	if root, ok := v["DRIVER_ROOT"]; ok {
		p.Driver = &nodestate.DriverInfo{Root: root, Version: v["DRIVER_VERSION"], CUDAVersion: v["CUDA_VERSION"], Simulated: v["SIMULATED"] == "true"}
		p.HostRoot = strings.TrimSuffix(v["DEV_ROOT_CTR_PATH"], filepath.Clean(p.DevRoot))
	}
	err = split(v["SECONDS_BY_GPU"], func(key, value string) error {
		seconds, err := strconv.ParseFloat(value, 64)
		if p.Seconds == nil {
			p.Seconds = map[gpu.UUID]float64{}
		}
		p.Seconds[gpu.UUID(key)] = seconds
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: SECONDS_BY_GPU: %w", ErrInvalid, err)
	}
	err = split(v["RESOURCES"], func(key, value string) error {
		n, err := strconv.Atoi(value)
		if p.Resources == nil {
			p.Resources = map[string]int{}
		}
		p.Resources[key] = n
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: RESOURCES: %w", ErrInvalid, err)
	}
	err = split(v["UNPROVEN_BY_GPU"], func(key, value string) error {
		if !reasonPattern().MatchString(value) {
			return fmt.Errorf("%q is not one CamelCase word", value)
		}
		if p.Unproven == nil {
			p.Unproven = map[gpu.UUID]gpu.Reason{}
		}
		p.Unproven[gpu.UUID(key)] = gpu.Reason(value)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: UNPROVEN_BY_GPU: %w", ErrInvalid, err)
	}
	return p, nil
}

// reasonPattern and keyPattern are compiled on first use: their counted repetitions take 100 kB, and
// most programs that link this package read no proof.
var (
	reasonPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,63}$`) })
	keyPattern    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`) })
)

func decodeNotReady(v map[string]string, l Layer) (*NotReady, error) {
	t, err := decodeHead(v, l)
	if err != nil {
		return nil, err
	}
	if !reasonPattern().MatchString(v["REASON"]) {
		return nil, fmt.Errorf("%w: REASON is not one CamelCase word", ErrInvalid)
	}
	return &NotReady{BootID: v["BOOT_ID"], Time: t, Reason: gpu.Reason(v["REASON"]), Message: v["MESSAGE"], Action: v["ACTION"]}, nil
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,-]*$`)

// quote returns value as a shell word that expands to value itself.
func quote(value string) string {
	if plain.MatchString(value) {
		return value
	}
	return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
}

// parse reads lines of KEY=value, quoted exactly as quote does: it accepts nothing that
// a shell would expand. It keeps unknown keys, because a newer validator may write
// more, and refuses duplicate ones.
func parse(data []byte) (map[string]string, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("%w: empty", ErrInvalid)
	}
	text, whole := strings.CutSuffix(string(data), "\n")
	if !whole || !utf8.ValidString(text) {
		return nil, fmt.Errorf("%w: cut short, or no text", ErrInvalid)
	}
	values := map[string]string{}
	for i, line := range strings.Split(text, "\n") {
		name, word, ok := strings.Cut(line, "=")
		if !ok || !keyPattern().MatchString(name) {
			return nil, fmt.Errorf("%w: line %d is no KEY=value", ErrInvalid, i+1)
		}
		if _, twice := values[name]; twice {
			return nil, fmt.Errorf("%w: line %d: %s is set twice", ErrInvalid, i+1, name)
		}
		value, ok := unquote(word)
		if !ok {
			return nil, fmt.Errorf("%w: line %d: the value of %s is not quoted as it has to be", ErrInvalid, i+1, name)
		}
		values[name] = value
	}
	return values, nil
}

func unquote(word string) (string, bool) {
	if plain.MatchString(word) {
		return word, true
	}
	if len(word) < 2 || word[0] != '\'' || word[len(word)-1] != '\'' || strings.ContainsFunc(word, unicode.IsControl) {
		return "", false
	}
	parts := strings.Split(word[1:len(word)-1], `'\''`)
	for _, part := range parts {
		if strings.Contains(part, "'") {
			return "", false
		}
	}
	return strings.Join(parts, "'"), true
}
