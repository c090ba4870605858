package statestore

// overQuota reports whether a SET would exceed a limit of the store. A SET of the value that
// the key already has, such as a renewal, never does.
func (s *Store) overQuota(current *entry, command *Command) bool {
	if current != nil && current.value == string(command.Value) {
		return false
	}
	if s.options.MaxValue > 0 && len(command.Value) > s.options.MaxValue {
		return true
	}
	grows := int64(len(command.Key) + len(command.Value))
	if current != nil {
		grows -= current.size()
	} else if _, fenced := s.fences[command.Key]; fenced {
		grows -= int64(len(command.Key))
	} else if s.options.MaxKeys > 0 && len(s.entries)+len(s.fences) >= s.options.MaxKeys {
		return true
	}
	return grows > 0 && s.options.MaxBytes > 0 && s.bytes+grows > s.options.MaxBytes
}
