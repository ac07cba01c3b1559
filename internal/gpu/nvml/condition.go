package nvml

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// throttles maps bits of nvmlClocksEventReasons to throttle reasons, in the order of
// their numbers.
var throttles = []struct {
	bit    uint64
	reason gpu.Throttle
}{
	{nvml.ClocksEventReasonGpuIdle, gpu.ThrottleIdle},
	{nvml.ClocksEventReasonApplicationsClocksSetting, gpu.ThrottleApplication},
	{nvml.ClocksEventReasonSwPowerCap, gpu.ThrottlePowerCap},
	{nvml.ClocksThrottleReasonHwSlowdown, gpu.ThrottleHardware},
	{nvml.ClocksEventReasonSyncBoost, gpu.ThrottleSyncBoost},
	{nvml.ClocksEventReasonSwThermalSlowdown, gpu.ThrottleThermal},
	{nvml.ClocksThrottleReasonHwThermalSlowdown, gpu.ThrottleHeat},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, gpu.ThrottlePowerBrake},
	{nvml.ClocksEventReasonDisplayClockSetting, gpu.ThrottleDisplayClock},
}

// Condition reads the state that a GPU reports about itself now. Fields that the GPU or its driver does not
// report, or fails to read, stay zero. An error means that the GPU or its driver is gone, that the library
// cannot look up a GPU by its UUID, or that s is not open.
func (s *Source) Condition(ctx context.Context, id gpu.UUID) (gpu.Condition, error) {
	if err := s.checkOpen(); err != nil {
		return gpu.Condition{}, err
	}
	const getHandle = "nvmlDeviceGetHandleByUUID"
	if !s.has[getHandle] {
		return gpu.Condition{}, fmt.Errorf("%s: %w", getHandle, &callError{getHandle, nvml.ERROR_FUNCTION_NOT_FOUND})
	}
	return call(ctx, s.calls, "the condition of "+string(id), func() (gpu.Condition, error) {
		device, ret := s.lib.DeviceGetHandleByUUID(string(id))
		if err := check(getHandle, ret); err != nil {
			return gpu.Condition{}, err
		}
		var c gpu.Condition
		err := firstError(
			func() error { return s.readECC(device, &c.ECC) },
			func() error { return s.readRows(device, &c.Rows) },
			func() error { return s.readThrottle(device, &c) },
			func() error { return s.readPCIe(device, &c.PCIe) },
			func() error { return s.readNVLinks(device, &c.NVLinks) },
		)
		c.C2CLinks = s.countC2CLinks(device)
		return c, err
	})
}

// callOptional makes a call that the library may lack and the GPU may refuse, for
// example in a guest of a virtual machine. ok reports whether there was a result.
func (s *Source) callOptional(name string, fn func() nvml.Return) (ok bool, err error) {
	if !s.has[name] {
		return false, nil
	}
	switch ret := fn(); ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_FOUND:
		return false, nil
	default:
		return ret == nvml.SUCCESS, check(name, ret)
	}
}

// readOptional is callOptional for what no judgement may hang on: a call that fails has no result, and is an error
// only if GPU or driver are gone.
func (s *Source) readOptional(name string, fn func() nvml.Return) (ok bool, err error) {
	if !s.has[name] {
		return false, nil
	}
	ret := fn()
	return ret == nvml.SUCCESS, s.checkOptional(name, ret)
}

// checkOptional converts the return code of a call without which a GPU works: only one of a GPU or driver that
// is gone is an error.
func (s *Source) checkOptional(name string, ret nvml.Return) error {
	switch {
	case ret == nvml.SUCCESS || isAbsent(ret):
		return nil
	case isGone(ret):
		return check(name, ret)
	}
	s.reportFailure(check(name, ret))
	return nil
}

func (s *Source) readECC(device nvml.Device, e *gpu.ECC) error {
	count := func(since nvml.EccCounterType, to *uint64) (bool, error) {
		return s.readOptional("nvmlDeviceGetTotalEccErrors", func() (ret nvml.Return) {
			*to, ret = device.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, since)
			return ret
		})
	}
	var err error
	// Only a GPU with ECC on answers.
	if e.On, err = count(nvml.VOLATILE_ECC, &e.Volatile); err != nil || !e.On {
		return err
	}
	_, err = count(nvml.AGGREGATE_ECC, &e.Aggregate)
	return err
}

func (s *Source) readRows(device nvml.Device, r *gpu.Rows) (err error) {
	r.Supported, err = s.readOptional("nvmlDeviceGetRemappedRows", func() (ret nvml.Return) {
		_, r.Uncorrected, r.Pending, r.Failed, ret = device.GetRemappedRows()
		return ret
	})
	return err
}

// readThrottle uses the function's name from before R535, which newer libraries still
// have.
func (s *Source) readThrottle(device nvml.Device, c *gpu.Condition) error {
	var reasons uint64
	_, err := s.readOptional("nvmlDeviceGetCurrentClocksThrottleReasons", func() (ret nvml.Return) {
		reasons, ret = device.GetCurrentClocksThrottleReasons()
		return ret
	})
	for _, t := range throttles {
		if reasons&t.bit != 0 {
			c.Throttle = append(c.Throttle, t.reason)
		}
	}
	return err
}

func (s *Source) readPCIe(device nvml.Device, p *gpu.PCIe) error {
	for _, q := range []struct {
		name string
		ask  func() (int, nvml.Return)
		to   *int
	}{
		{"nvmlDeviceGetCurrPcieLinkGeneration", device.GetCurrPcieLinkGeneration, &p.Generation},
		{"nvmlDeviceGetMaxPcieLinkGeneration", device.GetMaxPcieLinkGeneration, &p.MaxGeneration},
		{"nvmlDeviceGetCurrPcieLinkWidth", device.GetCurrPcieLinkWidth, &p.Width},
		{"nvmlDeviceGetMaxPcieLinkWidth", device.GetMaxPcieLinkWidth, &p.MaxWidth},
	} {
		if _, err := s.readOptional(q.name, func() (ret nvml.Return) { *q.to, ret = q.ask(); return ret }); err != nil {
			return err
		}
	}
	return nil
}

// readNVLinks lists the links whose state can be read: the others are neither up nor down.
func (s *Source) readNVLinks(device nvml.Device, l *gpu.NVLinks) error {
	const name = "nvmlDeviceGetNvLinkState"
	if !s.has[name] {
		return nil
	}
	for i := range nvml.NVLINK_MAX_LINKS {
		state, ret := device.GetNvLinkState(i)
		if err := s.checkOptional(name, ret); err != nil {
			return err
		}
		switch {
		case ret == nvml.ERROR_INVALID_ARGUMENT:
			return nil // no more links
		case ret != nvml.SUCCESS:
			continue
		case state == nvml.FEATURE_ENABLED:
			l.Up = append(l.Up, i)
		default:
			l.Down = append(l.Down, i)
		}
	}
	return nil
}

// maxC2CLinks bounds the links that are asked for: a GH200 has 10.
const maxC2CLinks = 64

// countC2CLinks returns the number of links in use to the CPU of the GPU's module. Few GPUs have some, and
// older drivers do not know the fields: whatever fails, there are none.
func (s *Source) countC2CLinks(device nvml.Device) int {
	if !s.has["nvmlDeviceGetFieldValues"] {
		return 0
	}
	read := func(field uint32, link uint32) uint32 {
		v := []nvml.FieldValue{{FieldId: field, ScopeId: link}}
		if device.GetFieldValues(v) != nvml.SUCCESS || nvml.Return(v[0].NvmlReturn) != nvml.SUCCESS {
			return 0
		}
		return binary.NativeEndian.Uint32(v[0].Value[:4]) // an unsigned int (nvml.h)
	}
	up := 0
	for link := range min(read(nvml.FI_DEV_C2C_LINK_COUNT, 0), maxC2CLinks) {
		if read(nvml.FI_DEV_C2C_LINK_GET_STATUS, link) == 1 { // active
			up++
		}
	}
	return up
}
