package gpu

// NextAction returns what a person should do about the fault of the GPU or MIG device id, as a
// command if there is one; "" if the GPU recovers by itself or the message already
// contains it.
func (f Fault) NextAction(id UUID) string {
	const reboot = "reboot the node; if the error comes again, have the GPU and its slot, power and cables checked"
	reset := "reset the GPU when no program uses it (nvidia-smi --gpu-reset -i " + string(id) + "), or reboot the node"
	if id.IsMIG() {
		reset = "reset its GPU when no program uses it (nvidia-smi --gpu-reset), or reboot the node"
	}
	switch f.Reason {
	case ReasonXID:
		switch info, _ := XID(f.XID); info.Class {
		case XIDApplication, XIDNotice:
			return "see the program that ran on the GPU; the GPU returns to service when it has had no error for a while"
		case XIDFatal:
			return reboot
		}
		return reset
	case ReasonECC, ReasonResetNeeded:
		return reset
	case ReasonRowRemap:
		return reset + "; if that does not help, have the GPU replaced"
	case ReasonFabric:
		return "see that the fabric manager (nvidia-fabricmanager; on NVL72 the switch trays' NMX) runs; if the GPU alone does not join, reset it when no program uses it"
	case ReasonLost, ReasonMissing:
		return reboot
	}
	return ""
}
