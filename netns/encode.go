package netns

import (
	"golang.org/x/sys/unix"
)

// encode returns the transaction that makes the table what t says, whatever it
// was before, and what each of its messages does. Objects are added (no error
// if they exist), chains and sets of addresses are flushed, then filled. Nothing
// is deleted, so hooks stay registered while rules are replaced, dynamic sets
// keep what Finalize put into them, and chains of other policies stay.
//
// Static sets of ranges are the same for every policy and are only filled:
// before Linux 6.18 a look-up in an interval set can miss what is there while a
// transaction puts the same elements in again, and a refused packet got out now
// and then (seen on 6.1, TestReplaceIsAtomic: 20 in 12,000). A set of ranges
// that grants (peers) fails closed in that moment.
func (t *table) encode() (packet []byte, steps []string) {
	b := newBatch(12 << 10)
	b.nft(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, "add table "+tableName)
	b.str(unix.NFTA_TABLE_NAME, tableName)
	b.end()
	for i := range t.sets {
		t.sets[i].encode(b, uint32(i+1))
	}
	for i := range t.chains {
		t.chains[i].encode(b)
	}
	for i := range t.sets {
		if !t.sets[i].dynamic {
			t.sets[i].encodeElements(b, !t.sets[i].interval)
		}
	}
	for i := range t.chains {
		t.chains[i].encodeRules(b)
	}
	if t.lifts {
		encodeLift(b)
	}
	return b.close(), b.steps
}

func (s *set) encode(b *batch, id uint32) {
	b.nft(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, "add set "+s.name)
	b.str(unix.NFTA_SET_TABLE, tableName)
	b.str(unix.NFTA_SET_NAME, s.name)
	var flags uint32
	if s.interval {
		flags = unix.NFT_SET_INTERVAL
	}
	b.u32(unix.NFTA_SET_FLAGS, flags)
	b.u32(unix.NFTA_SET_KEY_TYPE, s.key.id)
	b.u32(unix.NFTA_SET_KEY_LEN, s.key.length)
	b.u32(unix.NFTA_SET_ID, id)
	if s.sizeMax > 0 {
		b.nest(unix.NFTA_SET_DESC, func() { b.u32(unix.NFTA_SET_DESC_SIZE, s.sizeMax) })
	}
	b.end()
}

// encodeElements adds the elements; with flush they replace the content of the
// set.
func (s *set) encodeElements(b *batch, flush bool) {
	if flush {
		b.nft(unix.NFT_MSG_DELSETELEM, 0, "flush set "+s.name)
		s.encodeListHeader(b)
		b.end()
	}
	if len(s.elements) == 0 {
		return
	}
	b.nft(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, "fill set "+s.name)
	s.encodeListHeader(b)
	b.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
		for _, e := range s.elements {
			encodeElement(b, e.key, false)
			if e.end != nil {
				encodeElement(b, e.end, true)
			}
		}
	})
	b.end()
}

func (s *set) encodeListHeader(b *batch) {
	b.str(unix.NFTA_SET_ELEM_LIST_TABLE, tableName)
	b.str(unix.NFTA_SET_ELEM_LIST_SET, s.name)
}

func encodeElement(b *batch, key []byte, end bool) {
	b.nest(unix.NFTA_LIST_ELEM, func() {
		b.nest(unix.NFTA_SET_ELEM_KEY, func() { b.bytes(unix.NFTA_DATA_VALUE, key) })
		if end {
			b.u32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		}
	})
}

func (c *chain) encode(b *batch) {
	b.nft(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, "add chain "+c.name)
	b.str(unix.NFTA_CHAIN_TABLE, tableName)
	b.str(unix.NFTA_CHAIN_NAME, c.name)
	if c.hook.name != "" {
		kind, priority, policy := c.hook.plan()
		b.nest(unix.NFTA_CHAIN_HOOK, func() {
			b.u32(unix.NFTA_HOOK_HOOKNUM, c.hook.num)
			b.u32(unix.NFTA_HOOK_PRIORITY, uint32(priority))
		})
		b.u32(unix.NFTA_CHAIN_POLICY, policy)
		b.str(unix.NFTA_CHAIN_TYPE, kind)
	}
	b.end()
}

// encodeRules replaces the rules of the chain.
func (c *chain) encodeRules(b *batch) {
	b.nft(unix.NFT_MSG_DELRULE, 0, "flush chain "+c.name)
	b.str(unix.NFTA_RULE_TABLE, tableName)
	b.str(unix.NFTA_RULE_CHAIN, c.name)
	b.end()
	for _, r := range c.rules {
		b.nft(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, "add rule "+r.text)
		b.str(unix.NFTA_RULE_TABLE, tableName)
		b.str(unix.NFTA_RULE_CHAIN, c.name)
		b.nest(unix.NFTA_RULE_EXPRESSIONS, func() {
			for _, e := range r.exprs {
				e(b)
			}
		})
		b.end()
	}
}
