package sqlite

import "syscall"

// remoteTypes are the types, as statfs(2) has them, of filesystems that other
// machines may write to at the same time.
var remoteTypes = map[uint32]string{
	0x00006969: "NFS",
	0x0000517b: "SMB",
	0xff534d42: "CIFS",
	0xfe534d42: "SMB2",
	0x5346414f: "AFS",
	0x6b414653: "AFS",
	0x73757245: "Coda",
	0x00c36400: "Ceph",
	0x0bd00bd0: "Lustre",
	0x47504653: "GPFS",
	0x01161970: "GFS2",
	0x7461636f: "OCFS2",
	0x19830326: "BeeGFS",
	0x013111a8: "IBRIX",
	0xaad7aaea: "Panasas",
}

// remoteFilesystem names the network filesystem that dir is on, or is "".
func remoteFilesystem(dir string) string {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil {
		return "" // SQLite will say what is wrong
	}
	return remoteTypes[uint32(st.Type)]
}
