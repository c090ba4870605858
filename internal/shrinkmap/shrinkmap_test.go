package shrinkmap

import "testing"

func TestAMapHasItsEntriesWhateverWasDeleted(t *testing.T) {
	var m Map[int, int]
	for n := range 1000 {
		m.Set(n, n)
	}
	seen := 0
	for n := range m.All { // a loop goes on
		if seen++; n%100 != 0 {
			m.Delete(n)
		}
	}
	if seen != 1000 || len(m.All) != 10 || m.most > 8*10 {
		t.Errorf("%d were seen, %d are left, room for %d", seen, len(m.All), m.most)
	}
	for n := range 1000 {
		if got, ok := m.All[n]; ok != (n%100 == 0) || got != n && ok {
			t.Errorf("%d: %d, %t", n, got, ok)
		}
		m.Delete(n)
	}
	m.Set(1, 2)
	if len(m.All) != 1 || m.All[1] != 2 {
		t.Error(m.All)
	}
}
