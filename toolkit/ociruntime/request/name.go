package request

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// kinds returns the kinds of devices that a request may name. The runtime above adds
// devices of other vendors. Management devices are only for node agents, and NVSwitches
// for privileged containers that set NVIDIA_NVSWITCH.
func kinds() []string {
	return []string{cdi.KindNVIDIA, cdi.KindGPU, cdi.KindGDS, cdi.KindMOFED, cdi.KindGDRCopy, cdi.KindIMEX}
}

// ErrKind means that a device of another kind was requested.
var ErrKind = errors.New("no container may request this kind of device")

// Names that stand for no single GPU, as normalize returns them.
const (
	none = "none"
	void = "void"
)

// maxName limits the length of a name, well above the longest: kind, "=" and the UUID of a
// MIG device.
const maxName = 256

// normalize returns a name in a comparable form: "all", "none" and "void" in lower case,
// with or without a kind. It does not check the name.
func normalize(name string) string {
	kind, device, qualified := strings.Cut(name, "=")
	if !qualified {
		kind, device = "", name
	}
	for _, word := range []string{cdi.All, none, void} {
		if strings.EqualFold(device, word) {
			device = word
		}
	}
	if !qualified {
		return device
	}
	return kind + "=" + device
}

// isAll reports whether a normalized name stands for all devices of one of kinds.
func isAll(name string) bool {
	kind, device, qualified := strings.Cut(name, "=")
	if !qualified {
		return name == cdi.All
	}
	return device == cdi.All && slices.Contains(kinds(), kind)
}

// named reports whether each of the normalized names stands for one device.
func named(names []string) bool {
	return len(names) > 0 && !slices.ContainsFunc(names, unnamed)
}

// unnamed reports whether a name stands for no single device; images set such names.
func unnamed(name string) bool { return isAll(name) || name == none }

// checkName returns an error unless a request may contain the name: a GPU without a kind,
// or a device of one of kinds.
func checkName(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("%s has %d bytes, more than the %d that a device name may have", quote(name), len(name), maxName)
	}
	kind, device, qualified := strings.Cut(name, "=")
	if !qualified {
		kind, device = cdi.KindNVIDIA, name
	}
	if !slices.Contains(kinds(), kind) {
		return fmt.Errorf("%s: %w; name a GPU, or a device of %s", quote(name), ErrKind, strings.Join(kinds(), ", "))
	}
	if err := parser.ValidateDeviceName(device); err != nil {
		return fmt.Errorf("%s is not a valid device name: %s", quote(name), record.Clean(err.Error(), maxQuoted))
	}
	return nil
}

func checkNames(names []string) error {
	for _, name := range names {
		if err := checkName(name); err != nil {
			return err
		}
	}
	return nil
}

// checkChannels returns an error unless each is the number of an IMEX channel, or all.
func checkChannels(channels []string) error {
	for _, channel := range channels {
		if _, err := strconv.ParseUint(channel, 10, 16); err != nil && channel != cdi.All {
			return fmt.Errorf("%s is not the number of an IMEX channel", quote(channel))
		}
	}
	return nil
}

// Limits on text quoted from a container, and on a whole message.
const (
	maxQuoted  = 100
	maxMessage = 1000
)

// quote quotes text of a container, cut to a bounded length.
func quote(s string) string { return strconv.Quote(record.Clean(s, maxQuoted)) }

// assignment formats a variable with its value, cut to a bounded length.
func assignment(name, value string) string {
	return record.Clean(name, maxQuoted) + "=" + record.Clean(value, maxQuoted)
}

// Brief returns an error whose text is on one line and has a bounded length. It wraps err.
func Brief(err error) error {
	if err == nil {
		return nil
	}
	if text := record.Clean(strings.ReplaceAll(err.Error(), "\n", "; "), maxMessage); text != err.Error() {
		return &brief{text, err}
	}
	return err
}

type brief struct {
	text string
	err  error
}

func (b *brief) Error() string { return b.text }
func (b *brief) Unwrap() error { return b.err }
