package profile

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

// Bytes is an amount of memory, in YAML "81559Mi", "128Gi" or a bare number of bytes.
type Bytes uint64

var units = []struct {
	suffix string
	size   uint64
}{{"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}, {"", 1}}

// MarshalJSON uses the largest unit that is exact.
func (b Bytes) MarshalJSON() ([]byte, error) {
	for _, u := range units {
		if uint64(b)%u.size == 0 {
			return json.Marshal(strconv.FormatUint(uint64(b)/u.size, 10) + u.suffix)
		}
	}
	return nil, nil
}

// UnmarshalJSON accepts a number or a string with a unit.
func (b *Bytes) UnmarshalJSON(text []byte) error {
	s := strings.Trim(string(text), `"`)
	for _, u := range units {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n > math.MaxUint64/u.size {
			return fmt.Errorf("%q is no amount of memory such as 81559Mi", s)
		}
		*b = Bytes(n * u.size)
		return nil
	}
	return nil
}

// ID is a PCI device and vendor, as NVML gives them: 0x233010de.
type ID uint32

// MarshalJSON writes hexadecimal.
func (id ID) MarshalJSON() ([]byte, error) { return json.Marshal(fmt.Sprintf("0x%08x", uint32(id))) }

// UnmarshalJSON reads hexadecimal; YAML may have made a number of it already.
func (id *ID) UnmarshalJSON(text []byte) error {
	n, err := strconv.ParseUint(strings.Trim(string(text), `"`), 0, 32)
	if err != nil {
		return fmt.Errorf("%s is no PCI ID such as 0x233010de", text)
	}
	*id = ID(n)
	return nil
}

var pciForm = regexp.MustCompile(`^([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])$`)

func parsePCI(address string) (state.PCI, error) {
	m := pciForm.FindStringSubmatch(address)
	if m == nil {
		return state.PCI{}, fmt.Errorf("%q is no PCI address such as 0000:1b:00.0", address)
	}
	var n [4]uint32
	for i := range n {
		v, err := strconv.ParseUint(m[i+1], 16, 32)
		if err != nil {
			return state.PCI{}, err
		}
		n[i] = uint32(v)
	}
	return state.PCI{Domain: n[0], Bus: n[1], Device: n[2], Function: n[3]}, nil
}

// parseCPUs reads a list of CPUs as the kernel writes it, "0-55,112-167".
func parseCPUs(list string) (mask [4]uint64, err error) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || from > to || to >= 256 {
			return mask, fmt.Errorf("%q in %q is no range of CPUs 0 to 255", part, list)
		}
		for cpu := from; cpu <= to; cpu++ {
			mask[cpu/64] |= 1 << (cpu % 64)
		}
	}
	return mask, nil
}

// CPUs writes a mask as the kernel does.
func CPUs(mask [4]uint64) string {
	has := func(cpu int) bool { return cpu < 256 && mask[cpu/64]&(1<<(cpu%64)) != 0 }
	var parts []string
	for cpu := 0; cpu < 256; cpu++ {
		if !has(cpu) {
			continue
		}
		first := cpu
		for has(cpu + 1) {
			cpu++
		}
		if first == cpu {
			parts = append(parts, strconv.Itoa(cpu))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", first, cpu))
		}
	}
	return strings.Join(parts, ",")
}

// parseCUDA reads "13.0" as NVML counts, 13000.
func parseCUDA(version string) (uint32, error) {
	major, minor, ok := strings.Cut(version, ".")
	a, err1 := strconv.ParseUint(major, 10, 8)
	b, err2 := strconv.ParseUint(minor, 10, 8)
	if !ok || err1 != nil || err2 != nil || b > 99 {
		return 0, fmt.Errorf("driver.cuda: %q is no CUDA version such as %s", version, DefaultCUDA)
	}
	return uint32(a*1000 + b*10), nil
}
