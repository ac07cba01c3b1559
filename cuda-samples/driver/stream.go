package driver

import "time"

// Stream is a queue of work on a device; nil is the context's default one.
type Stream struct {
	device *Device
	handle uintptr
}

func (s *Stream) id() uintptr {
	if s == nil {
		return 0
	}
	return s.handle
}

// NewStream creates a stream that does not wait for the default stream.
func (d *Device) NewStream() (*Stream, error) {
	const nonBlocking = 1 // CU_STREAM_NON_BLOCKING
	s := &Stream{device: d}
	if err := d.check("cuStreamCreate", d.driver.streamCreate(&s.handle, nonBlocking)); err != nil {
		return nil, err
	}
	return s, nil
}

// Synchronize waits for the stream's work.
func (s *Stream) Synchronize() error {
	return s.device.check("cuStreamSynchronize", s.device.driver.streamSynchronize(s.handle))
}

// Close destroys the stream.
func (s *Stream) Close() error {
	return s.device.check("cuStreamDestroy", s.device.driver.streamDestroy(s.handle))
}

// Event marks a point in a stream's work. The device records the time at which it gets there.
type Event struct {
	device *Device
	handle uintptr
}

// NewEvent creates an event.
func (d *Device) NewEvent() (*Event, error) {
	e := &Event{device: d}
	if err := d.check("cuEventCreate", d.driver.eventCreate(&e.handle, 0)); err != nil {
		return nil, err
	}
	return e, nil
}

// Record puts the event after the work that the stream holds now.
func (e *Event) Record(s *Stream) error {
	return e.device.check("cuEventRecord", e.device.driver.eventRecord(e.handle, s.id()))
}

// Synchronize waits for the work before the event.
func (e *Event) Synchronize() error {
	return e.device.check("cuEventSynchronize", e.device.driver.eventSynchronize(e.handle))
}

// Elapsed returns the time from start to e, as the device measured it, exact to about half a
// microsecond. Both events must have completed.
func (e *Event) Elapsed(start *Event) (time.Duration, error) {
	var milliseconds float32
	err := e.device.check("cuEventElapsedTime", e.device.driver.eventElapsed(&milliseconds, start.handle, e.handle))
	return time.Duration(float64(milliseconds) * float64(time.Millisecond)), err
}

// Close destroys the event.
func (e *Event) Close() error {
	return e.device.check("cuEventDestroy", e.device.driver.eventDestroy(e.handle))
}
