package cluster

import (
	"maps"
	"os"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/namespace"
)

// Guest describes how a virtual machine becomes a node of a cluster. The code that boots the
// machine puts the files on its disk, attaches the tap device as its network card, configures the
// addresses and runs the programs.
type Guest struct {
	Name     string
	IP       string            // of its network card, in a network /16
	Gateway  string            // for all other addresses
	Network  *os.File          // the tap device
	Files    map[string]string // files of its disk, by path
	Binaries map[string]string // programs of its disk: path there → path on this machine
	Programs [][]string        // programs to run, with arguments; each reports that it is ready with sd_notify(3)
	Pause    string            // path of the archive of the image that each pod needs (pause)
}

// newGuest connects a virtual machine to the cluster as the node of that name and number. The
// caller must close the tap device.
func newGuest(config nodeConfig, name string, number int) (*Guest, error) {
	config.guest = true
	n := &Node{Name: name, IP: nodeIP(number), config: config, number: number}
	files, err := n.content("")
	if err != nil {
		return nil, err
	}
	g := &Guest{
		Name: name, IP: n.IP, Gateway: PlaneIP, Files: files, Pause: config.Folder.Join(binaries.PauseArchive),
		Binaries: map[string]string{},
		Programs: [][]string{
			append([]string{namespace.Bin + "/" + containerd}, containerdArgs...),
			append([]string{namespace.Bin + "/" + kubelet}, n.kubeletArgs()...),
		},
	}
	maps.Copy(g.Binaries, config.Folder.Programs(namespace.Bin, "/opt/cni/bin"))
	if g.Network, err = config.Plane.AttachGuest(number); err != nil {
		return nil, err
	}
	return g, nil
}
