package responses

// Events are appended by hand: there is one for each token.

// event begins one and leaves its object open.
func (s *stream) event(name string) {
	s.out = append(append(append(s.out, "event: "...), name...), "\ndata: {\"type\":\""...)
	s.out = appendInt(append(append(s.out, name...), `","sequence_number":`...), s.seq)
	s.seq++
}

func (s *stream) endEvent() { s.out = append(s.out, "}\n\n"...) }

// lifecycle appends an event with the whole object.
func (s *stream) lifecycle(name string) {
	s.event(name)
	s.out = append(s.out, `,"response":`...)
	s.out = s.shape.append(s.out, s.state)
	s.endEvent()
}

// place adds which item, and which part of it, an event is about.
func (s *stream) place(it *item) {
	s.out = append(append(append(s.out, `,"item_id":"`...), it.id...), '"')
	s.out = appendInt(append(s.out, `,"output_index":`...), it.index)
}

func (s *stream) placePart(it *item) {
	s.place(it)
	s.out = appendInt(append(s.out, `,"content_index":`...), len(it.parts))
}

// text adds a member whose value is an escaped text.
func (s *stream) textMember(name, escaped string) {
	s.out = append(append(append(s.out, `,"`...), name...), `":"`...)
	s.out = append(append(s.out, escaped...), '"')
}

// keepalive appends an event that says only that the stream lives. Clients that
// time a silence count events, not comments.
func (s *stream) keepalive() {
	s.event("keepalive")
	s.endEvent()
}

// itemEvent appends one of an item's first and last events.
func (s *stream) itemEvent(name string, it *item, body []byte) {
	s.event(name)
	s.out = appendInt(append(s.out, `,"output_index":`...), it.index)
	s.out = append(append(s.out, `,"item":`...), body...)
	s.endEvent()
}

// partEvent appends one of a part's first and last events.
func (s *stream) partEvent(name string, it *item, part string) {
	s.event(name)
	s.placePart(it)
	s.out = append(append(s.out, `,"part":`...), part...)
	s.endEvent()
}

// errorEvent appends the error in both of the forms that clients look for. It
// comes before response.failed: each of the two is the only one that some
// clients know.
func (s *stream) errorEvent(f Failure) {
	code, message := nullable(f.Code), quote(f.Message)
	s.event("error")
	s.out = append(s.out, `,"code":`+code+`,"message":`+message+`,"param":null,"error":{"type":`+quote(f.Kind)+
		`,"code":`+code+`,"message":`+message+`,"param":null}`...)
	s.endEvent()
}
