package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Addresses of a cluster. Each cluster has its own network namespaces without a connection to the
// outside, so all clusters use the same addresses.
const (
	PlaneIP    = "10.88.0.1" // the control plane's, and the nodes' gateway
	ServiceIP  = "10.96.0.1" // of the Service "kubernetes": the control plane has this address, so that no kube-proxy is needed
	serviceNet = "10.96.0.0/24"
	dnsIP      = "10.96.0.10" // nothing serves there
)

// maxNodes is the maximum number of nodes in a cluster: each has one byte in its addresses.
const maxNodes = 100

const bridgeName = "br0"

// nodeIP returns the address of a node by its number, which counts from 1.
func nodeIP(number int) string { return fmt.Sprintf("10.88.1.%d", number) }

// PodNet returns the network of that node's pods.
func PodNet(number int) string { return fmt.Sprintf("10.244.%d.0/24", number) }

// inNetwork calls do with a handle on the network of a process.
func inNetwork(pid int, do func(h *netlink.Handle, ns netns.NsHandle) error) error {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return fmt.Errorf("network namespace of process %d: %w", pid, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	return do(h, ns)
}

// withinNetwork calls do on a thread in the network namespace of a process. Sockets that do opens stay
// in that namespace.
func withinNetwork(pid int, do func() error) error {
	runtime.LockOSThread()
	here, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer here.Close()
	there, err := netns.GetFromPid(pid)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("network namespace of process %d: %w", pid, err)
	}
	defer there.Close()
	if err := netns.Set(there); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network of process %d: %w", pid, err)
	}
	err = do()
	// The thread must not end: machines die with the thread that started them, which may be this one.
	if back := netns.Set(here); back != nil {
		return errors.Join(err, fmt.Errorf("leave the network of process %d: %w", pid, back))
	}
	runtime.UnlockOSThread()
	return err
}

// makeBridge creates the network of the control plane. plane is its first process.
func makeBridge(plane int) error {
	err := inNetwork(plane, func(h *netlink.Handle, _ netns.NsHandle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := h.LinkSetUp(lo); err != nil {
			return err
		}
		if err := h.AddrAdd(lo, address(ServiceIP+"/32")); err != nil {
			return err
		}
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
		if err := h.LinkAdd(bridge); err != nil {
			return err
		}
		if err := h.AddrAdd(bridge, address(PlaneIP+"/16")); err != nil {
			return err
		}
		return h.LinkSetUp(bridge)
	})
	if err != nil {
		return fmt.Errorf("network of the control plane: %w", err)
	}
	return nil
}

// attach connects a node to the control plane's bridge. plane and node are their first
// processes. It must be called again after a reboot, which creates a new first process.
func attach(plane, node, number int) error {
	err := inNetwork(node, func(inNode *netlink.Handle, ns netns.NsHandle) error {
		err := inNetwork(plane, func(h *netlink.Handle, _ netns.NsHandle) error { return plug(h, ns, number) })
		if err != nil {
			return err
		}
		for name, addr := range map[string]string{"lo": "", "eth0": nodeIP(number) + "/16"} {
			link, err := inNode.LinkByName(name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if addr != "" {
				if err := inNode.AddrAdd(link, address(addr)); err != nil {
					return err
				}
			}
			if err := inNode.LinkSetUp(link); err != nil {
				return err
			}
		}
		return inNode.RouteAdd(&netlink.Route{Gw: net.ParseIP(PlaneIP)})
	})
	if err != nil {
		return fmt.Errorf("network of node %d: %w", number, err)
	}
	return nil
}

// plug creates the veth pair from the bridge to a node, whose end is its eth0.
func plug(h *netlink.Handle, node netns.NsHandle, number int) error {
	bridge, err := h.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("n%d", number)
	if old, err := h.LinkByName(name); err == nil { // from before the node's reboot; the kernel is slow to remove it
		_ = h.LinkDel(old)
	}
	cable := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index},
		PeerName:  "eth0", PeerNamespace: netlink.NsFd(node),
	}
	if err := h.LinkAdd(cable); err != nil {
		return fmt.Errorf("veth %s: %w", name, err)
	}
	if err := h.LinkSetUp(cable); err != nil {
		return err
	}
	return routePods(h, number)
}

// attachGuest connects a virtual machine to the control plane's bridge, as a node. The returned
// tap device is its network card; closing it removes it. The node configures its own address.
func attachGuest(plane, number int) (tap *os.File, err error) {
	name := fmt.Sprintf("n%d", number)
	if err := withinNetwork(plane, func() error { tap, err = openTap(name); return err }); err != nil {
		return nil, fmt.Errorf("network of node %d: tap device: %w", number, err)
	}
	err = inNetwork(plane, func(h *netlink.Handle, _ netns.NsHandle) error {
		bridge, err := h.LinkByName(bridgeName)
		if err != nil {
			return err
		}
		link, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		if err := h.LinkSetMaster(link, bridge); err != nil {
			return err
		}
		if err := h.LinkSetUp(link); err != nil {
			return err
		}
		return routePods(h, number)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network of node %d: %w", number, err), tap.Close())
	}
	return tap, nil
}

// openTap creates a tap device in the network of this thread. Packets have a header that lets the
// machine leave checksums to the kernel.
func openTap(name string) (*os.File, error) {
	const path = "/dev/net/tun"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make %s: %w", name, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// routePods routes a node's pod network from the control plane to the node.
func routePods(h *netlink.Handle, number int) error {
	_, pods, err := net.ParseCIDR(PodNet(number))
	if err != nil {
		return err
	}
	return h.RouteReplace(&netlink.Route{Dst: pods, Gw: net.ParseIP(nodeIP(number))})
}

// address parses a constant address.
func address(cidr string) *netlink.Addr {
	ip, network, _ := net.ParseCIDR(cidr)
	network.IP = ip
	return &netlink.Addr{IPNet: network}
}
