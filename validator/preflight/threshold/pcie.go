package threshold

// lane is the rate of one PCIe lane in one direction, in bytes per second, by generation:
// transfers per second × encoding efficiency / 8 bits (PCI Express Base Specification,
// revision 6.0). Packet headers are not subtracted.
var lane = []float64{
	1: 2.5e9 * 8 / 10 / 8,
	2: 5e9 * 8 / 10 / 8,
	3: 8e9 * 128 / 130 / 8,
	4: 16e9 * 128 / 130 / 8,
	5: 32e9 * 128 / 130 / 8,
	6: 64e9 * 242 / 256 / 8,
}

// PCIe returns the rate of a link in one direction, in bytes per second; 0 if the generation
// or the width is not known.
func PCIe(generation, width int) float64 {
	if generation <= 0 || generation >= len(lane) || width <= 0 {
		return 0
	}
	return lane[generation] * float64(width)
}
