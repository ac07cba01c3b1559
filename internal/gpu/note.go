package gpu

import "slices"

// Reasons of a Note.
const (
	NoteRemapPending   Reason = "RowRemapPending"   // rows of faulty memory are replaced at the next reset
	NoteRecovery       Reason = "RecoveryAction"    // the driver asks for something that this version does not know
	NoteDrainP2P       Reason = "DrainPeerToPeer"   // programs must stop to use NVLink before the driver can tell more
	NoteRecoverIMEX    Reason = "RecoverIMEXDomain" // memory of other nodes cannot be reached until nvidia-imex runs again
	NoteNoXIDs         Reason = "NoXIDEvents"       // the driver reports no XIDs of the GPU
	NoteFabricDegraded Reason = "FabricDegraded"    // the NVLink fabric works less well than it should
)

// Note is something that people should know about a GPU that may be allocated nevertheless.
type Note struct {
	Reason  Reason
	Message string // one sentence, with what to do
}

// HasNote reports whether the GPU has a note with this reason.
func (d Device) HasNote(r Reason) bool {
	return slices.ContainsFunc(d.Notes, func(n Note) bool { return n.Reason == r })
}
