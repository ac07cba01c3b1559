package gpu

import "strconv"

// XIDInfo is what is known of one XID, the number under which the driver
// reports an error of a GPU.
type XIDInfo struct {
	Meaning string // a few words, to stand after the number
	// Application says that a program on the GPU can cause it by itself: the
	// reference device plugin (k8s-device-plugin, internal/rm/health.go)
	// ignores exactly these. What follows from that is for the caller to say.
	Application bool
}

// XID looks up what is known of an XID; ok is false for one that is not in the
// table, which says nothing about how bad it is.
func XID(number uint64) (info XIDInfo, ok bool) {
	info, ok = xidTable[number]
	return info, ok
}

// XIDText is the number with its meaning, for logs: "XID 79 (the GPU has
// fallen off the bus)", or "XID 1234" when nothing is known of it.
func XIDText(number uint64) string {
	text := "XID " + strconv.FormatUint(number, 10)
	if info, ok := xidTable[number]; ok {
		text += " (" + info.Meaning + ")"
	}
	return text
}

// xidTable follows NVIDIA's Xid catalog,
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html and, for
// older GPUs, https://docs.nvidia.com/deploy/xid-errors/, in our words.
var xidTable = map[uint64]XIDInfo{
	8:   {Meaning: "the GPU stopped processing: a channel timed out while idle"},
	13:  {Meaning: "graphics engine exception", Application: true},
	31:  {Meaning: "GPU memory page fault", Application: true},
	32:  {Meaning: "invalid or corrupted push buffer stream"},
	38:  {Meaning: "driver firmware error"},
	43:  {Meaning: "the GPU stopped processing a program", Application: true},
	45:  {Meaning: "channels removed, a program was ended or an earlier error came before", Application: true},
	46:  {Meaning: "the GPU stopped processing: a timeout"},
	48:  {Meaning: "double-bit ECC error"},
	54:  {Meaning: "auxiliary power is not connected to the GPU board"},
	56:  {Meaning: "display engine error"},
	57:  {Meaning: "error in programming the video memory interface"},
	58:  {Meaning: "unstable video memory interface, or a memory error that cannot be corrected silently"},
	61:  {Meaning: "internal micro-controller breakpoint or warning"},
	62:  {Meaning: "internal micro-controller halt"},
	63:  {Meaning: "ECC page retirement or row remapping was recorded"},
	64:  {Meaning: "ECC page retirement or row remapping could not be recorded"},
	66:  {Meaning: "illegal access by the driver"},
	68:  {Meaning: "video processor exception", Application: true},
	69:  {Meaning: "graphics engine class error"},
	74:  {Meaning: "NVLink error"},
	78:  {Meaning: "vGPU start error"},
	79:  {Meaning: "the GPU has fallen off the bus"},
	80:  {Meaning: "corrupted data sent to the GPU"},
	81:  {Meaning: "VGA subsystem error"},
	92:  {Meaning: "high rate of single-bit ECC errors"},
	93:  {Meaning: "wear limit of the inforom was reached, not fatal"},
	94:  {Meaning: "contained memory error: one program was hit"},
	95:  {Meaning: "uncontained memory error: all programs on the GPU may be hit"},
	109: {Meaning: "context switch timeout", Application: true},
	110: {Meaning: "security fault"},
	119: {Meaning: "the GPU's system processor (GSP) did not answer in time"},
	120: {Meaning: "error of the GPU's system processor (GSP)"},
	121: {Meaning: "error of the C2C link to the CPU"},
	122: {Meaning: "reading over SPI failed (power management unit)"},
	123: {Meaning: "writing over SPI failed (power management unit)"},
	137: {Meaning: "illegal access to a peer's memory over NVLink"},
	140: {Meaning: "unrecovered ECC error"},
	143: {Meaning: "GPU initialisation error"},
	144: {Meaning: "NVLink: SAW error"},
	145: {Meaning: "NVLink: RLW error"},
	146: {Meaning: "NVLink: TLW error"},
	147: {Meaning: "NVLink: TREX error"},
	148: {Meaning: "NVLink: NVLPW control error"},
	149: {Meaning: "NVLink: NETIR error"},
	150: {Meaning: "NVLink: MSE error"},
	151: {Meaning: "key rotation error of confidential computing"},
	154: {Meaning: "the GPU's recovery action changed"},
	155: {Meaning: "NVLink software-defined error"},
	156: {Meaning: "resource retirement was recorded"},
	157: {Meaning: "resource retirement failed"},
	158: {Meaning: "fatal timeout of the GPU"},
}
