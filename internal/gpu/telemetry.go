package gpu

// Quantity is a number that a GPU or a MIG device measures about itself, in the unit in which
// NVML reports it (nvml.h).
type Quantity int

// The quantities. A MIG device has only those of its memory.
const (
	Utilization          Quantity = iota // percent of the time in which a kernel ran
	MemoryUtilization                    // percent of the time in which memory was read or written
	MemorySize                           // bytes
	MemoryReserved                       // bytes that the driver has set aside
	MemoryUsed                           // bytes; with drivers before R510, those reserved too
	MemoryFree                           // bytes
	Temperature                          // °C
	Power                                // mW, of the whole board
	PowerLimit                           // mW, the limit in force
	SMClock                              // MHz
	MemoryClock                          // MHz
	ECCVolatileCorrected                 // memory errors since the driver last initialised the GPU
	ECCVolatileUncorrected
	ECCAggregateCorrected // over the GPU's lifetime
	ECCAggregateUncorrected
	RemappedRowsCorrected // rows of memory replaced because of correctable errors
	RemappedRowsUncorrected
)

// Measurement holds the present value of each quantity that a device reports.
type Measurement map[Quantity]uint64

// Telemetry holds the measurements of a GPU and its MIG devices at one moment.
type Telemetry struct {
	GPU Measurement
	MIG map[UUID]Measurement // of its MIG devices
}
