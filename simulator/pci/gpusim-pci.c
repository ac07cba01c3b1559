/*
 * A PCI bus of its own with one device, SIMULATED: vendor and device ID, class and
 * address ranges are those of an NVIDIA GPU, and its memory is reserved RAM with two
 * numbers in it. NVIDIA's modules bind to it; their initialisation of it fails, as it must.
 *
 * The kernel's argument memmap=128M$0x60000000 reserves the RAM.
 */
#include <linux/module.h>
#include <linux/pci.h>

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("SIMULATED PCI bus with the numbers of an NVIDIA GPU; there is no GPU under it");

#define WINDOW_START 0x60000000U
#define WINDOW_SIZE  0x08000000U
#define BAR_COUNT    3

static ushort device_id = 0x20b0;
module_param(device_id, ushort, 0444);

/*
 * A memory range of the device: its register, where it lies and how large it is. The
 * kernel assigns no range of its own in RAM, but takes those that are there.
 */
static const struct {
	int reg;
	u32 start, size, flags;
} bars[BAR_COUNT] = {
	{ PCI_BASE_ADDRESS_0, WINDOW_START, 16 << 20, 0 },
	{ PCI_BASE_ADDRESS_1, WINDOW_START + (64 << 20), 64 << 20, PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH },
	{ PCI_BASE_ADDRESS_3, WINDOW_START + (32 << 20), 32 << 20, PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH },
};

static u8 config[256];

static void put(int at, int size, u32 value)
{
	for (; size > 0; size--, value >>= 8)
		config[at++] = value;
}

static u32 get(int at, int size)
{
	u32 value = 0;

	while (size-- > 0)
		value = value << 8 | config[at + size];
	return value;
}

static int read_config(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	if (devfn != 0 || where + size > (int)sizeof(config)) {
		*value = ~0u;
		return devfn != 0 ? PCIBIOS_DEVICE_NOT_FOUND : PCIBIOS_SUCCESSFUL;
	}
	*value = get(where, size);
	return PCIBIOS_SUCCESSFUL;
}

/* What may be written: the command register, ranges within their sizes, the interrupt's line. */
static int write_config(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	int i;

	if (devfn != 0)
		return PCIBIOS_DEVICE_NOT_FOUND;
	for (i = 0; i < BAR_COUNT; i++)
		if (where == bars[i].reg && size == 4) {
			put(where, 4, (value & ~(bars[i].size - 1)) | bars[i].flags);
			return PCIBIOS_SUCCESSFUL;
		} else if (where == bars[i].reg + 4 && size == 4 && bars[i].flags) {
			put(where, 4, value);
			return PCIBIOS_SUCCESSFUL;
		}
	if (where == PCI_COMMAND || where == PCI_INTERRUPT_LINE)
		put(where, size, value);
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops ops = { .read = read_config, .write = write_config };
static struct pci_sysdata sysdata = { .domain = 1, .node = NUMA_NO_NODE };
static struct resource window = {
	.name = "gpusim-pci", .start = WINDOW_START, .end = WINDOW_START + WINDOW_SIZE - 1, .flags = IORESOURCE_MEM,
};
static struct resource numbers = { .name = "gpusim-pci", .start = 0, .end = 0, .flags = IORESOURCE_BUS };
static struct pci_bus *bus;

/*
 * Two registers of a GPU say which chip it is: these are an A100's, found by trying.
 * Without them NVIDIA's modules do not take the device for one of theirs.
 */
#define BOOT_0        0x000
#define BOOT_0_GA100  0x170000a1
#define BOOT_42       0xa00
#define BOOT_42_GA100 0x170a1000

static int write_chip(void)
{
	void __iomem *registers = ioremap(WINDOW_START, 16 << 20);

	if (!registers)
		return -ENOMEM;
	memset_io(registers, 0, 16 << 20);
	writel(BOOT_0_GA100, registers + BOOT_0);
	writel(BOOT_42_GA100, registers + BOOT_42);
	iounmap(registers);
	return 0;
}

static int __init stub_init(void)
{
	LIST_HEAD(resources);
	int i, err;

	err = write_chip();
	if (err)
		return err;
	put(PCI_VENDOR_ID, 2, PCI_VENDOR_ID_NVIDIA);
	put(PCI_DEVICE_ID, 2, device_id);
	put(PCI_REVISION_ID, 1, 0xa1);
	put(PCI_CLASS_DEVICE, 2, PCI_CLASS_DISPLAY_3D);
	put(PCI_SUBSYSTEM_VENDOR_ID, 2, PCI_VENDOR_ID_NVIDIA);
	put(PCI_SUBSYSTEM_ID, 2, 0x134f);
	for (i = 0; i < BAR_COUNT; i++)
		put(bars[i].reg, 4, bars[i].start | bars[i].flags);
	put(PCI_INTERRUPT_PIN, 1, 1);
	put(PCI_INTERRUPT_LINE, 1, 11);

	pci_add_resource(&resources, &window);
	pci_add_resource(&resources, &numbers);
	bus = pci_scan_root_bus(NULL, 0, &ops, &sysdata, &resources);
	if (!bus) {
		pci_free_resource_list(&resources);
		return -ENOMEM;
	}
	pci_bus_claim_resources(bus);
	pci_bus_add_devices(bus);
	return 0;
}
module_init(stub_init);

static void __exit stub_exit(void)
{
	pci_lock_rescan_remove();
	pci_stop_root_bus(bus);
	pci_remove_root_bus(bus);
	pci_unlock_rescan_remove();
}
module_exit(stub_exit);
