package responses

const defaultPage = 20

// Page is a piece of a list of items.
type Page struct {
	Limit int    // 1 to 100; 0 is 20
	After string // id of the item after which it begins; empty: at the start
	Asc   bool   // oldest first; else newest first
}

// Cut returns the page of items that are given oldest first, and whether more
// follow. An After that isn't there is a *Problem.
func (p Page) Cut(items []Item) (page []Item, more bool, err error) {
	if p.Limit == 0 {
		p.Limit = defaultPage
	}
	started := p.After == ""
	for i := range items {
		it := items[i]
		if !p.Asc {
			it = items[len(items)-1-i]
		}
		switch {
		case !started:
			started = it.ID == p.After
		case len(page) == p.Limit:
			return page, true, nil
		default:
			page = append(page, it)
		}
	}
	if !started {
		return nil, false, noCursor(p.After)
	}
	return page, false, nil
}

func noCursor(id string) error {
	return problem("after", codeValue, "Invalid 'after': there is no item %q in this list.", clip(id))
}

// List renders a page as a list object.
func List(page []Item, more bool) []byte {
	b := []byte(`{"object":"list","data":[`)
	for i, it := range page {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, it.Shown()...)
	}
	first, last := "null", "null"
	if len(page) > 0 {
		first, last = quote(page[0].ID), quote(page[len(page)-1].ID)
	}
	return append(b, `],"first_id":`+first+`,"last_id":`+last+`,"has_more":`+boolean(more)+`}`...)
}
