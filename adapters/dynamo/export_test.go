package dynamo

// TableName is the name of the table.
func (s *Store) TableName() string { return s.table }
