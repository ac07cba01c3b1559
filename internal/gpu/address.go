package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseUUID checks that text names a GPU or a MIG device in one of the ways
// NVML does: "GPU-" or "MIG-" and a UUID, or, from drivers before R470,
// "MIG-GPU-<uuid>/<GPU instance>/<compute instance>".
func ParseUUID(text string) (UUID, error) {
	if old, ok := strings.CutPrefix(text, "MIG-GPU-"); ok {
		parts := strings.Split(old, "/")
		if len(parts) == 3 && isUUID(parts[0]) && isNumber(parts[1]) && isNumber(parts[2]) {
			return UUID(text), nil
		}
	} else if id, ok := strings.CutPrefix(text, "GPU-"); ok && isUUID(id) {
		return UUID(text), nil
	} else if id, ok := strings.CutPrefix(text, "MIG-"); ok && isUUID(id) {
		return UUID(text), nil
	}
	return "", fmt.Errorf("%q is not the UUID of a GPU or MIG device: want GPU-… or MIG-… as nvidia-smi -L prints it", text)
}

// IsMIG reports whether the UUID names a MIG device.
func (u UUID) IsMIG() bool { return strings.HasPrefix(string(u), "MIG-") }

// ParsePCIAddress reads a PCI address as NVML ("00000000:3B:00.0") or sysfs
// ("0000:3b:00.0") spells it.
func ParsePCIAddress(text string) (PCIAddress, error) {
	bad := func() (PCIAddress, error) {
		return "", fmt.Errorf("%q is not a PCI address: want domain:bus:device.function as in 0000:3b:00.0", text)
	}
	domain, rest, ok1 := strings.Cut(text, ":")
	bus, rest, ok2 := strings.Cut(rest, ":")
	device, function, ok3 := strings.Cut(rest, ".")
	if !ok1 || !ok2 || !ok3 || len(domain) < 4 || len(domain) > 8 || len(bus) != 2 || len(device) != 2 || len(function) != 1 {
		return bad()
	}
	var n [4]uint64
	for i, field := range []string{domain, bus, device, function} {
		if strings.Trim(field, "0123456789abcdefABCDEF") != "" {
			return bad()
		}
		value, err := strconv.ParseUint(field, 16, 32)
		if err != nil {
			return bad()
		}
		n[i] = value
	}
	if n[2] > 0x1f || n[3] > 7 {
		return bad()
	}
	return PCIAddress(fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3])), nil
}

// isUUID reports whether text has the form 8-4-4-4-12 of hexadecimal digits.
func isUUID(text string) bool {
	if len(text) != 36 {
		return false
	}
	for i, c := range []byte(text) {
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f', 'A' <= c && c <= 'F':
		default:
			return false
		}
	}
	return true
}

func isNumber(text string) bool {
	return text != "" && len(text) <= 5 && strings.Trim(text, "0123456789") == ""
}
