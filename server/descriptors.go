package server

// reservedDescriptors are not used for connections of clients: the log, files that are read
// again, and whatever else is in the process need some.
const reservedDescriptors = 64

// descriptorCure is what to do where connections find no descriptor.
const descriptorCure = "raise the limit of open files: ulimit -n, or LimitNOFILE of systemd"

// maxSockets returns how many connections may be open where a process may have so many
// descriptors; 0 means that there is no limit.
func maxSockets(descriptors int) int {
	if descriptors == 0 {
		return 0
	}
	return max(descriptors-reservedDescriptors, descriptors/2, 1)
}
